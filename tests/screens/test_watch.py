"""`ddptop watch`: selecting a job, and the real program with a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddptop.commands import watch
from tests.support import fake_home
from tests.support.terminal import Terminal

from ddptop_runner.base.errors import NoSuchJobError, UsageError
from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView

WaitUntil = Callable[..., Any]
Start = Callable[..., Terminal]
TRAINING = (
    "import time\nfor step in range(10**6):\n    print('step', step, 'loss', 0.5, flush=True)\n"
)
TRAINING += "    time.sleep(0.2)\n"


@pytest.fixture
def training(tmp_path: Path, wait_until: WaitUntil) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ddptop did not start and that writes losses to a file."""
    script = tmp_path / "fit.py"
    script.write_text(TRAINING)
    with (tmp_path / "fit.log").open("wb") as log:
        command = [sys.executable, str(script)]
        environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    wait_until(lambda: (tmp_path / "fit.log").stat().st_size > 0, what="its first line")
    yield process
    process.kill()
    process.wait()


def test_a_pid_is_a_foreign_job(ddptop_home: Path, training: subprocess.Popen[bytes]) -> None:
    found = watch.find(str(training.pid))
    assert isinstance(found, ForeignJob)
    assert [rank.pid for rank in found.ranks] == [training.pid]


def test_a_name_of_ddptops_own_job_is_that(ddptop_home: Path) -> None:
    fake_home.failed_job(ddptop_home)
    found = watch.find("vit-b")
    assert isinstance(found, JobView)
    assert found.job == "vit-base"


def test_a_pid_of_ddptops_own_job_is_that_job(
    ddptop_home: Path, training: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_home, "HOST", procs.host_name())
    folder = fake_home.two_cpu_ranks(ddptop_home)
    fake_home.change(folder, host=procs.host_name())
    monkeypatch.setattr(procs, "pids_of_job", lambda job_id: [training.pid])
    found = watch.find(str(training.pid))
    assert isinstance(found, JobView)
    assert found.job == "mlp-cpu"


def test_a_pid_is_no_prefix_of_an_own_job(
    ddptop_home: Path, training: subprocess.Popen[bytes]
) -> None:
    spec = fake_home.spec_of(f"{training.pid}9", 1, 60)
    folder = fake_home.make_folder(ddptop_home, spec)
    ended = {"state": "finished", "ended_at": fake_home.ago(10), "guardian": None}
    fake_home.write_snapshot(folder, fake_home.snapshot_of(spec, **ended))
    assert isinstance(watch.find(str(training.pid)), ForeignJob)
    found = watch.find(f"{training.pid}9")
    assert isinstance(found, JobView)


def test_what_is_not_there_is_said(ddptop_home: Path) -> None:
    with pytest.raises(NoSuchJobError):
        watch.find("no-such-training")


def test_without_a_terminal_it_names_what_prints(
    ddptop_home: Path, training: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(UsageError) as refused:
        watch.run(str(training.pid))
    assert "ddptop ps" in str(refused.value)


def test_readonly_before_a_verb_names_the_way(
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = ddptop_cli("--readonly", "watch", "1")
    assert ended.returncode == 2
    assert "ddptop watch --readonly" in ended.stderr


def test_a_real_process_is_watched_to_its_end(
    terminal: Start, wait_until: WaitUntil, training: subprocess.Popen[bytes]
) -> None:
    one = terminal("watch", "--readonly", str(training.pid))
    wait_until(lambda: one.draws(b"not started by ddptop"), what="the screen")
    assert one.draws(b"read-only")
    wait_until(lambda: one.draws(b"from the log"), what="the losses of its log")
    one.type("s")
    wait_until(lambda: one.draws(b"read-only: "), what="the refusal")
    assert training.poll() is None
    training.kill()
    training.wait()
    wait_until(lambda: one.draws(b"gone"), what="its end on the screen")
    assert one.process.poll() is None, "the screen stays with the last figures"
    one.type("q")
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 0
