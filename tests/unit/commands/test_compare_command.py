"""`ddptop compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ddptop.__main__ import main
from tests.support import fake_home, fake_story


def compare(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ddptop", "compare", *arguments])
        return main()


def test_json_has_figures_differences_and_losses_at_common_steps(
    ddptop_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_story.learner(ddptop_home, "gpt-a", "3e-4", steps=200)
    fake_story.learner(ddptop_home, "gpt-b", "1e-3", falls=60, ago_s=7000, steps=160)
    fake_story.learner(ddptop_home, "fit", "1", target="fit.py", ago_s=6000, bad_from=0)
    assert compare("gpt-a", "gpt-b", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [job["job"] for job in told["jobs"]] == ["gpt-a", "gpt-b"]
    assert (told["common_step"], told["better"]) == (160, "gpt-b")
    assert told["differences"] == [{"what": "--lr", "values": ["3e-4", "1e-3"]}]
    first = told["jobs"][0]
    assert (first["step"], first["total_steps"], first["restarts"]) == (200, 200, 0)
    assert first["step_time_s"] == pytest.approx(0.5)
    assert first["gpus"] == []
    last = told["losses"][-1]
    assert last["step"] == 160
    assert last["values"] == [job["loss_at_common"] for job in told["jobs"]]
    assert len(told["losses"]) == 50
    # a single job is compared with the newest of its script; unknown is null
    assert compare("gpt-a", "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"][1]["job"] == "gpt-b"
    assert compare("fit", "gpt-a", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    bad = told["jobs"][0]
    assert (bad["loss"], bad["loss_state"], bad["loss_bad_since_step"]) == (None, "nan", 2)
    assert (told["common_step"], told["better"], told["losses"]) == (None, None, [])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["gpt-a", "nobody", "--json"], 3, "no job named 'nobody'"),
        (["gpt-a", "gpt-a", "--json"], 2, "gpt-a is listed twice"),
        (["gpt-a", "--json"], 3, "no other job to compare gpt-a with"),
        ([*"abcdefghi"], 2, "cannot compare 9 jobs; list at most 8"),
        (["gpt-a"], 2, "compare needs a terminal; use ddptop compare gpt-a --json in scripts"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    ddptop_home: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    fake_story.learner(ddptop_home, "gpt-a", "3e-4", steps=20)
    assert compare(*arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("conditions", "code", "words"),
    [
        (["step_time > +5%"], 0, "step_time: 0.5 to 0.5 (+0.0%, > +5% passes)"),
        (["loss > +1%", "step_time > +5%"], 0, "> +1% passes"),
        (["loss < -1%"], 1, "< -1% fails"),
        (["validation_loss > +1%"], 1, "validation_loss: unknown"),
        (["loss"], 2, "--fail-if 'loss' is not valid; use one like 'step_time > +5%'"),
        (["speed > +5%"], 2, "--fail-if cannot compare 'speed'; use loss, "),
    ],
)
def test_a_gate_fails_if_the_second_job_is_worse(
    ddptop_home: Path,
    capsys: pytest.CaptureFixture[str],
    conditions: list[str],
    code: int,
    words: str,
) -> None:
    fake_story.learner(ddptop_home, "gpt-a", "3e-4", steps=200)
    fake_story.learner(ddptop_home, "gpt-b", "1e-3", falls=60, ago_s=7000, steps=160)
    gates = [part for one in conditions for part in ("--fail-if", one)]
    assert compare("gpt-a", "gpt-b", *gates) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_a_job_that_never_began_is_compared_all_the_same(
    ddptop_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_home.finished_job(ddptop_home)
    fake_story.learner(ddptop_home, "gpt-a", "3e-4", steps=20)
    assert compare("gpt-a", "resnet-a", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["common_step"] is None
    assert told["jobs"][1]["best_loss"] is None
    assert told["jobs"][1]["step"] == 9000
