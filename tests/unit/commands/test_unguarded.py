"""Which commands adopt a job whose guardian was killed, and which only read it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import ddptop.cli
import pytest
from ddptop.commands import attach, unguarded
from ddptop.sources.collector import Collector
from ddptop.sources.query import Query
from tests.support.builders import gone, put_job

from ddptop_runner.base.paths import run_folder
from ddptop_runner.host import procs
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs import commands
from ddptop_runner.node import adoption
from ddptop_runner.store.history import HistoryWriter

TAKEN_UP = "ddptop: adopted train, which had lost its guardian\n"


@pytest.fixture
def taken(monkeypatch, ddptop_home) -> list[str]:
    """The jobs that were adopted; there is one that needs it."""
    found: list[str] = []

    def adopt(view, shell):
        found.append(view.job)
        return adoption.Adopted(view, ("LOST",) if "LOST" in shell else ())

    monkeypatch.setattr(adoption, "adopt", adopt)
    monkeypatch.setattr(attach, "is_terminal", lambda: True)
    monkeypatch.setattr(attach, "run", lambda job, **_: 0)
    for name in ("stop", "restart_group"):
        monkeypatch.setattr(commands, name, lambda *_: None)
    monkeypatch.setattr(commands, "stacks", lambda *_: [])
    ended = SimpleNamespace(job="train", state="finished", snapshot=None)
    monkeypatch.setattr(commands, "wait_until_ended", lambda *_: ended)
    monkeypatch.setattr("ddptop.commands.control.wait_until_ended", lambda *_: ended)
    here = procs.identify(os.getpid())
    folder = put_job("train", {"state": "running", "guardian": gone(), "supervisor": here})
    log = folder.log_file(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("a line\n")
    HistoryWriter(folder.history_db).close()
    put_job("guarded", {"state": "running", "guardian": here})
    return found


EACH = ["attach train", "status train", "logs train", "events train", "stop train", "kill train"]


@pytest.mark.parametrize("line", ["", "ls", *EACH, "restart train", "wait train", "stacks train"])
def test_command_adopts_the_job_and_reports_it_in_one_line(taken, capsys, line):
    ddptop.cli.cli.main(line.split(), standalone_mode=False)
    assert taken == ["train"]
    assert capsys.readouterr().err.startswith(TAKEN_UP)


@pytest.mark.parametrize(
    "line", ["--readonly", "attach train --readonly", "status guarded", "gpus"]
)
def test_who_only_looks_or_looks_elsewhere_does_not(taken, capsys, line):
    ddptop.cli.cli.main(line.split(), standalone_mode=False)
    assert taken == []
    assert "unguarded" not in capsys.readouterr().err


def test_an_open_screen_takes_it_up_too_and_does_not_try_at_every_look(taken):
    for adopts in (False, True):
        collector = Collector(lambda _: None, adopts=adopts)
        for _ in range(3):
            collector._answer_and_deliver(Query())
        assert taken == (["train"] if adopts else [])


def test_what_nothing_tells_any_more_is_named(taken, capsys, monkeypatch):
    monkeypatch.setenv("LOST", "1")
    ddptop.cli.cli.main(["ls"], standalone_mode=False)
    said = capsys.readouterr().err
    assert said == TAKEN_UP + "ddptop: could not recover these environment variables: LOST\n"


def test_who_waits_for_its_end_takes_it_up_meanwhile(taken):
    look = unguarded.KeptGuarded()
    for job in ("guarded", "train", "train", "guarded"):
        look(read_job(run_folder(job)))
    assert taken == ["train"]
    unguarded.KeptGuarded()(read_job(run_folder("train")))
    assert taken == ["train", "train"]
