"""A job's progress on its screen and the overview, with unknown values shown as unknown."""

from __future__ import annotations

from ddptop.draw import header as job_header
from ddptop.job import record
from ddptop.job.progress import eta, share
from ddptop.job.record import Job
from ddptop.style import plain
from tests.support.fake_foreign import foreign_job, ranks_of, view_of
from tests.support.fake_home import NOW, ago
from tests.support.own_views import row_of
from tests.unit.draw.test_panels import view_of as own_view

from ddptop_runner.model.snapshot import Progress, RankSample

RUN = Progress(step=12_339, total=50_000, fraction=0.24678, eta_s=12470.0, source="log")
EPOCH = Progress(
    step=30, total=100, counts="epoch", epoch=2, epochs=5, fraction=0.26, eta_s=60.0, source="log"
)
UNCLEAR = Progress(step=30, total=100, counts="epoch", epoch=0, source="log")

ONE_EPOCH = Progress(
    step=94, total=188, counts="epoch", epoch_fraction=0.5, epoch_eta_s=47.0, source="log"
)
GUESSED = Progress(
    step=94,
    total=188,
    counts="epoch",
    epoch=2,
    epochs=4,
    fraction=0.375,
    eta_s=470.0,
    estimated=True,
    epoch_fraction=0.5,
    epoch_eta_s=47.0,
    source="log",
)


def header(progress_: Progress | None, cells: int = 120, **snapshot) -> list[str]:
    view = own_view(progress=progress_, attempt_started_at=ago(900), **snapshot)
    return [plain(line).rstrip() for line in job_header.header_lines(view, NOW, cells)]


def with_progress(told: Progress) -> Job:
    job = foreign_job("train.py", 2)
    ranks, gpus = ranks_of(job)
    return record.foreign_job(view_of(job, ranks, gpus, output="/home/root/run.log", progress=told))


def test_epochs_have_their_place_behind_the_bar() -> None:
    far = header(EPOCH, step=130)[1]
    assert " step 130  ━" in far
    assert "─  epoch 2/5, step 30 of 100  26.0%   ETA 1m 00s   elapsed" in far
    narrow = header(EPOCH, 60, step=130)[1]
    assert "━" in narrow and narrow.endswith("26.0%")


def test_bar_of_only_the_epoch_says_so() -> None:
    far = header(ONE_EPOCH, 140, step=94)[1]
    assert "━" in far
    assert "step 94 of 188  50.0% of the epoch   epoch ETA 47s   elapsed" in far
    row = row_of(own_view(progress=ONE_EPOCH, step=94))
    assert (row["done"][0], row["eta"][0]) == ("", "n/a")


def test_estimate_is_labeled() -> None:
    assert share(GUESSED) == "~37.5%"
    assert eta(GUESSED) == "~7m 50s"
    assert eta(RUN) == "3h 27m"
    far = header(GUESSED, 150, step=94)[1]
    assert "~37.5%   ETA ~7m 50s   epoch ETA 47s   elapsed" in far
    row = row_of(own_view(progress=GUESSED, step=94))
    assert (row["done"][0], row["eta"][0]) == ("~37.5%", "~7m 50s")


def test_without_a_share_there_is_no_bar() -> None:
    for unknown, words in (
        (None, "total steps unknown"),
        (UNCLEAR, "epoch 0, step 30 of 100; total steps unknown"),
        (
            Progress(total=900, source="api"),
            "of 900 steps; this attempt's starting step is unknown",
        ),
        (Progress(epoch=1, source="log"), "epoch 1; total steps unknown"),
        (Progress(step=930, total=900, source="api"), "step 930 of 900; total steps unknown"),
    ):
        far = header(unknown, 140, step=30)[1]
        assert words in far
        assert "ETA n/a" not in far and "━" not in far
    assert "30 / 900" not in header(Progress(total=900, source="api"), 140, step=30)[1]


def test_never_100_before_the_end() -> None:
    near = Progress(step=99_999, total=100_000, fraction=0.99999, source="log")
    assert share(near) == "99.9%"
    done = Progress(step=5, total=5, fraction=1.0, source="log")
    assert share(done) == "100%"


def test_losses_of_the_output_are_called_so() -> None:
    told = {"host": "h", "loss": 2.5, "loss_state": "ok"}
    logged = RankSample(rank=0, local_rank=0, loss_source="log", **told)
    assert "2.5000 from the log" in header(None, ranks=[logged])[2]
    probed = RankSample(rank=1, local_rank=1, loss_source="probe", **told)
    assert "from the log" not in header(None, ranks=[logged, probed])[2]


def test_a_foreign_job_has_its_bar_too() -> None:
    view = with_progress(RUN)
    alive, far, output, _ = (
        plain(line).rstrip() for line in job_header.header_lines(view, NOW, 120)
    )
    assert "elapsed" not in alive and far.endswith("ETA 3h 27m   elapsed 1h 12m")
    assert " progress  step 12,339 / 50,000  ━" in far
    assert output == " output    /home/root/run.log"
    without = with_progress(UNCLEAR)
    assert "total steps unknown" in plain(job_header.header_lines(without, NOW, 140)[1])
    assert row_of(view)["eta"][0] == "3h 27m"
    assert row_of(without)["eta"][0] == ""
