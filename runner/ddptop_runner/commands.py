"""What a person can do to a job: the one way in which CLI and TUI act on it."""

from __future__ import annotations

import shutil
import time
from typing import Any

from ddptop_runner import control
from ddptop_runner.errors import UsageError, WaitTimeoutError
from ddptop_runner.registry import JobView, read_job

POLL_S = 0.1


def stop(view: JobView, grace_s: float = 30.0) -> None:
    """Ask every rank to end (SIGTERM), and after `grace_s` end what is left (SIGKILL).

    Returns at once; `wait_until_ended` waits for the last process.

    Raises:
        UsageError: when the job has ended already.
        ControlError: when its supervisor does not answer.
    """
    _require_live(view)
    control.request(view.folder, "stop", grace_s=grace_s)


def kill(view: JobView) -> None:
    """End every process of the job now (SIGKILL).

    Raises:
        UsageError: when the job has ended already.
        ControlError: when its supervisor does not answer.
    """
    _require_live(view)
    control.request(view.folder, "kill")


def restart_group(view: JobView) -> None:
    """Restart all ranks of a live job: a group restarts as a unit.

    Raises:
        UsageError: when the job has ended.
        ControlError: when its supervisor does not answer.
    """
    _require_live(view)
    control.request(view.folder, "restart")


def stacks(view: JobView, rank: int | None = None, timeout_s: float = 15.0) -> dict[str, Any]:
    """Where every rank stands, without stopping it.

    Returns:
        `{"stacks": [{"rank", "pid", "text", "note"}]}`, `text` None with a note where none was had.

    Raises:
        UsageError: when the job has ended.
        ControlError: when its supervisor does not answer.
    """
    _require_live(view)
    return control.request(view.folder, "stacks", timeout_s=timeout_s, rank=rank)


def wait_until_ended(view: JobView, timeout_s: float | None = None) -> JobView:
    """The job's last view, once no process of it is left.

    Raises:
        WaitTimeoutError: when it still lives after `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while view.is_live:
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(f"{view.job} is still {view.state} after {timeout_s:g} s")
        time.sleep(POLL_S)
        view = read_job(view.folder)
    return view


def remove(view: JobView) -> None:
    """Delete an ended job's run folder with its logs and history.

    Raises:
        UsageError: when the job lives.
    """
    if view.is_live:
        raise UsageError(f"{view.job} is {view.state}", f"stop it first: ddptop stop {view.job}")
    if view.folder.live_dir != view.folder.path:
        shutil.rmtree(view.folder.live_dir, ignore_errors=True)
    shutil.rmtree(view.folder.path)


def _require_live(view: JobView) -> None:
    if not view.is_live:
        raise UsageError(f"{view.job} has ended ({view.state})", "ddptop restart starts it again")
