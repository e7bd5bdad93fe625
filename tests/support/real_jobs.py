"""Real jobs: a small DDP script, and a handle on a launched job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddptop_runner.base.errors import DamagedFileError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs.contract import job_status
from ddptop_runner.model.snapshot import encode
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.logs import attempts, log_end, ranks

DESCENT = Path(__file__).parent / "trainers" / "descent.py"
MEETING = Path(__file__).parent / "trainers" / "meeting.py"
REPORTER = '''
"""Reports steps and losses, and writes them down; without pauses by `hurry`."""
import json, os, sys, time
import ddptop

steps, pause_s, out = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{out}/losses-{attempt}-{rank}.jsonl", "w", buffering=1) as file:
    for step in range(1, steps + 1):
        loss = (1 + rank) / step
        ddptop.report(loss=loss)
        file.write(json.dumps({"step": step, "loss": loss, "at": time.time()}) + "\\n")
        print(f"rank {rank} attempt {attempt} step {step}", flush=True)
        if not os.path.exists(f"{out}/hurry"):
            time.sleep(pause_s)
'''
DDP_TRAINER = '''
"""A plain script: trains a line, and writes down what it computed."""
import json, os, sys, time
import torch
import torch.distributed as dist

steps, pause_s, out = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"{out}/losses-{attempt}-{rank}.jsonl", "w", buffering=1) as file:
    for step in range(1, steps + 1):
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        file.write(json.dumps({"step": step, "loss": loss.item(), "at": time.time()}) + "\\n")
        time.sleep(pause_s)
dist.barrier()
dist.destroy_process_group()
'''


class Job:
    """A launched job, as a user's script sees it through the command line."""

    def __init__(self, name: str, cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self.name = name
        self.cli = cli

    def status(self) -> dict[str, Any]:
        """The output of `status --json`, read in this process so that polling does not starve the
        ranks."""
        view = read_job(RunFolder(self.folder()))
        status: dict[str, Any] = json.loads(encode(job_status(view)))
        return status

    def rank(self, rank: int) -> dict[str, Any]:
        ranks: list[dict[str, Any]] = self.status()["ranks"]
        return ranks[rank] if len(ranks) > rank else {"pid": None, "step": None, "state": None}

    def events(self, type_: str | None = None) -> list[dict[str, Any]]:
        """The output of `events --json`, also read in this process."""
        try:
            events = HistoryReader(self.folder() / "history.db").events()
        except DamagedFileError:
            return []
        told: list[dict[str, Any]] = [json.loads(encode(event)) for event in events]
        return [event for event in told if type_ in (None, event["type"])]

    def log(self, rank: int | None = None, attempt: int | None = None) -> str:
        """The output of a rank in the given attempt, or in the latest one."""
        folder = RunFolder(self.folder())
        printed = attempts(folder)
        if not printed:
            return ""
        chosen = printed[-1] if attempt is None else attempt
        only = ranks(folder, chosen)[:1] if rank is None else [rank]
        return "".join(log_end(folder.log_file(chosen, one)) for one in only)

    def folder(self) -> Path:
        return Path(os.environ["DDPTOP_HOME"]) / "runs" / self.name

    def processes(self) -> dict[str, int]:
        """PIDs of the guardian, supervisor, and agent."""
        snapshot = read_job(RunFolder(self.folder())).snapshot
        roles = ("guardian", "supervisor", "agent")
        found = {role: getattr(snapshot, role, None) for role in roles}
        return {role: process.pid for role, process in found.items() if process is not None}

    def trains(self, attempt: int = 0, step: int = 3) -> bool:
        status = self.status()
        return (
            status["attempt"] == attempt
            and status["state"] == "running"
            and len(status["ranks"]) > 0
            and all((rank["step"] or 0) >= step for rank in status["ranks"])
        )

    def kill_rank(self, rank: int) -> int:
        pid = int(self.rank(rank)["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait(self, timeout_s: float = 240.0) -> int:
        answer = self.cli("wait", self.name, "--timeout", str(timeout_s), timeout_s=timeout_s + 30)
        return answer.returncode


JOB_TIMEOUT_S = 180.0
"""Importing torch in two ranks takes 2 s on an idle machine, and a minute on a busy one."""


@pytest.fixture
def wait_until(
    wait_until: Callable[..., Any],
    ddptop_home: Path,
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., Any]:
    """The usual fixture with a timeout for real jobs; then it prints what they have done."""

    def wait(condition: Callable[[], Any], timeout_s: float = JOB_TIMEOUT_S, **options: Any) -> Any:
        try:
            return wait_until(condition, timeout_s, **options)
        except pytest.fail.Exception:
            for folder in sorted(ddptop_home.glob("runs/*/")):
                print(*Job(folder.name, ddptop_cli).events(), sep="\n")
                for log in sorted(folder.glob("**/*.log")):
                    print(log.relative_to(folder), log.read_text(errors="replace")[-2000:])
            raise

    return wait


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """A folder with `train.py`, which writes its losses there.

    It reports them without importing torch, which saves 3 s of CPU per rank; the agent still uses
    torch.
    """
    (tmp_path / "train.py").write_text(REPORTER)
    return tmp_path


@pytest.fixture
def ddp_trainer(trainer: Path) -> Path:
    """The same, but training with DDP."""
    (trainer / "train.py").write_text(DDP_TRAINER)
    return trainer


@pytest.fixture
def launch(
    trainer: Path, ddptop_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., Job]:
    """`launch(steps, pause_s, *options)` starts the trainer detached, with two ranks."""

    def start(steps: int = 10_000, pause_s: float = 0.03, *options: str, nproc: int = 2) -> Job:
        answer = ddptop_cli(
            *["launch", "-d", "--nproc", str(nproc), *options],
            *[str(trainer / "train.py"), str(steps), str(pause_s), str(trainer)],
        )
        assert answer.returncode == 0, answer.stderr
        return Job(answer.stdout.strip(), ddptop_cli)

    return start


@pytest.fixture
def launch_script(
    tmp_path: Path, ddptop_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., Job]:
    """`launch_script(text, *options)` starts the given script.

    `descent` and `meeting` are in its folder.
    """

    def start(text: str, *options: str, nproc: int = 2, name: str = "script") -> Job:
        for module in (DESCENT, MEETING):
            shutil.copy(module, tmp_path)
        (tmp_path / f"{name}.py").write_text(text)
        answer = ddptop_cli(
            "launch", "-d", "--nproc", str(nproc), *options, str(tmp_path / f"{name}.py")
        )
        assert answer.returncode == 0, answer.stderr
        return Job(answer.stdout.strip(), ddptop_cli)

    return start


@pytest.fixture
def launch_command(
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., Job]:
    """`launch_command(argv, *options)` starts a command on CPUs, detached."""

    def start(argv: list[str], *options: str) -> Job:
        answer = ddptop_cli("launch", "-d", "--gpus", "none", *options, "--", *argv)
        assert answer.returncode == 0, answer.stderr
        return Job(answer.stdout.strip(), ddptop_cli)

    return start
