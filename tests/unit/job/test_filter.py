"""What is typed after `/`, and what it hides."""

from __future__ import annotations

import pytest
from ddptop.job import record
from ddptop.job.figures.jobs import JOB_WORDS, job_facts
from ddptop.job.figures.ranks import RANK_WORDS, rank_facts
from ddptop.job.filter import Facts, Vocabulary, parse
from tests.support import fake_foreign, fake_gpus
from tests.support.fake_home import NOW
from tests.support.own_views import read

from ddptop_runner.model.snapshot import RankSample

WORDS = Vocabulary(("state", "user", "gpu"), {"loss": "", "util": "%", "mem": "bytes", "eta": "s"})
FACTS = Facts(
    "llama-ft failed ada train.py --config Big",
    {"state": ("failed",), "user": ("ada",), "gpu": ("3", "10")},
    {"loss": 2.5, "util": 12.0, "mem": 3.0 * 2**30, "eta": None},
)


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "llama", "LLAMA big", '"train.py --config"', "!nothing"),
        *("state:failed", "state:fail", "user:ada llama", "gpu:3", "gpu:10", "gpu:0-3", "gpu:1,3"),
        *("loss>2", "loss>=2.5", "loss<=2.5", "loss=2.5", "util<20", "util<20%", "!util>20"),
        *(
            "mem>2G",
            "mem<4GiB",
            "mem>3000M",
            "!state:running",
            "!gpu:1",
            'user:"ada"',
            "State:FAILED",
        ),
    ],
)
def test_it_shows(text: str) -> None:
    found = parse(text, WORDS)
    assert found.trouble is None
    assert found.matches(FACTS)


@pytest.mark.parametrize(
    "text",
    [
        *("mistral", "llama mistral", "!llama", '"config train"', "state:run", "user:bob", "gpu:1"),
        *("gpu:4-9", "loss>3", "loss<2.5", "util>20", "mem>4G", "!state:failed", "!loss>2"),
        *("eta<60", "eta>0", "!eta>0"),  # an unknown value matches neither
    ],
)
def test_it_hides(text: str) -> None:
    found = parse(text, WORDS)
    assert found.trouble is None
    assert not found.matches(FACTS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"open', 'missing closing quote: "open'),
        ("stat:failed", "unknown field stat; use state, user, gpu, loss, util, mem, eta"),
        ("losses>2", "unknown field losses; use state, user, gpu, loss, util, mem, eta"),
        ("loss>", "missing number; use loss>2"),
        ("loss>two", "two is not a valid number; use loss>2"),
        ("loss>2G", "2G is not a valid number; use loss>2"),
        ("loss:2", "loss is a number; use loss>2 or loss<2"),
        ("state>2", "state is not a number; use state:VALUE"),
        ("state:", "missing value; use state:VALUE"),
        ("llama !", 'missing word after "!"'),
        ('""', "empty quotes"),
    ],
)
def test_invalid_filter_is_reported_and_shows_everything(text: str, words: str) -> None:
    found = parse(text, WORDS)
    assert found.trouble == words
    assert not found
    assert found.matches(Facts())


def test_spans_of_time_have_units() -> None:
    soon = Facts(figures={"eta": 5000.0})
    assert [parse(t, WORDS).matches(soon) for t in ("eta<2h", "eta<30m", "eta>1h", "eta<1d")] == [
        *(True, False, True, True)
    ]


def test_jobs_and_ranks_have_the_facts_that_can_be_asked_for(frozen: object) -> None:
    own = job_facts(read(fake_gpus.eight_gpu_ranks(frozen)), NOW, "rank 5 is slow")
    foreign = job_facts(record.foreign_job(fake_foreign.with_findings()), NOW)
    rank = rank_facts(RankSample(rank=3, local_rank=3, host="a", gpu=3, loss=2.0, state="hung"))
    for facts, words in ((own, JOB_WORDS), (foreign, JOB_WORDS), (rank, RANK_WORDS)):
        assert set(facts.fields) == set(words.fields)
        assert set(facts.figures) == set(words.figures)

    def shows(text: str, facts: Facts, words: Vocabulary = JOB_WORDS) -> bool:
        return parse(text, words).matches(facts)

    assert shows('gpu:7 loss>2 done<30 "rank 5 is slow" by:ddptop util<80 mem>70G restarts=1', own)
    assert shows("user:alice by:mp.spawn gpu:4 alerts>1", foreign)
    assert not shows("loss>0", foreign)
    assert shows("rank:2-4 state:hung gpu:3 loss<3", rank, RANK_WORDS)
