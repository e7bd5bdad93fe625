"""Injects a fault into a live job, and undoes temporary faults.

Signals go only to processes in the job's snapshot, after checking that no PID was reused.
"""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.kinds import Fault
from benchmarks.faults.places import STUB_STATE, lose_device

from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView
from ddptop_runner.model.snapshot import ProcessId

Undo = Callable[[], None]

SCREEN_BYTES = 2000
"""A viewer that has drawn this much is running."""
SCREEN_TIMEOUT_S = 20.0
FILL_EVERY_S = 0.1
GARBAGE = b"this is no longer what it was\n" * 64


def commit(fault: Fault, view: JobView, rank: int) -> Undo:
    """Inject the fault now.

    Args:
        fault: what to do.
        view: the live job, read a moment ago.
        rank: on which rank, where the fault is one of a rank.

    Returns:
        What undoes it, to be called after `fault.hold_s`.

    Raises:
        DdptopError: when it cannot be committed on this job, or a viewer outlives its terminal.
    """
    if fault.name == "gpu-lost":
        lose_device(_device_of(view, rank))
    if fault.script_word is not None:
        _tell_script(view, rank, fault.script_word)
        return _nothing
    if fault.place == "rank":
        return _signal_rank(fault, view, rank)
    return _OUTSIDE[fault.name](view)


def _nothing() -> None:
    """For faults that need no undoing."""


def argument_of(view: JobView, option: str) -> Path | None:
    """A path that was passed to the job's script, relative to its working folder."""
    args = view.spec.args
    if option not in args[:-1]:
        return None
    return Path(view.spec.cwd) / args[args.index(option) + 1]


def _tell_script(view: JobView, rank: int, word: str) -> None:
    path = argument_of(view, "--fault-file")
    if path is None:
        raise UsageError(
            f"{view.job} was not launched with --fault-file", "launch it with ddptop demo --fault"
        )
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(word, encoding="utf-8")
    temporary.replace(path.with_name(f"{path.name}.{rank}"))


def _device_of(view: JobView, rank: int) -> int:
    devices = view.spec.devices or []
    if STUB_STATE not in os.environ or rank >= len(devices):
        raise UsageError(f"{view.job} is not using the simulated driver")
    return devices[rank].index


def _signal_rank(fault: Fault, view: JobView, rank: int) -> Undo:
    ranks = [] if view.snapshot is None else view.snapshot.ranks
    pid = next((one.pid for one in ranks if one.rank == rank), None)
    if pid is None or procs.environ_value(pid, "DDPTOP_JOB_ID") != view.spec.job_id:
        raise UsageError(f"rank {rank} of {view.job} is not running")
    process = procs.identify(pid)
    if fault.name == "kill":
        procs.signal_process(process, signal.SIGKILL)
        return _nothing
    procs.signal_process(process, signal.SIGSTOP)
    return lambda: _signal(process, signal.SIGCONT)


def _signal(process: ProcessId | None, number: int) -> None:
    if process is not None:
        procs.signal_process(process, number)


def _kill_supervisor(view: JobView) -> Undo:
    _signal(None if view.snapshot is None else view.snapshot.supervisor, signal.SIGKILL)
    return _nothing


def _kill_guardian(view: JobView) -> Undo:
    _signal(None if view.snapshot is None else view.snapshot.guardian, signal.SIGKILL)
    return _nothing


def _kill_agent(view: JobView) -> Undo:
    if view.snapshot is None or view.snapshot.agent is None:
        raise UsageError(f"{view.job} has no running agent")
    _signal(view.snapshot.agent, signal.SIGKILL)
    return _nothing


def _kill_tmux(view: JobView) -> Undo:
    name = view.spec.tmux_socket
    if view.spec.backing != "tmux" or name is None:
        raise UsageError(f"{view.job} is not running in tmux")
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)
    return _nothing


def _close_terminal(view: JobView) -> Undo:
    """A viewer whose terminal disappears; the job also receives the signals sent at logout."""
    pid, master = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, but not in a login
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
        os.execv(sys.executable, own_command("ddptop", "attach", view.job))
    drawn, deadline = 0, time.monotonic() + SCREEN_TIMEOUT_S
    with contextlib.suppress(OSError):  # it may exit by itself
        while drawn < SCREEN_BYTES and (left := deadline - time.monotonic()) > 0:
            if select.select([master], [], [], left)[0]:
                drawn += len(os.read(master, 65536))
    os.close(master)
    if view.snapshot is not None:
        for process in (view.snapshot.guardian, view.snapshot.supervisor, view.snapshot.agent):
            _signal(process, signal.SIGHUP)
    deadline = time.monotonic() + SCREEN_TIMEOUT_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise DdptopError(f"the viewer for {view.job} outlived its terminal and was killed")
        time.sleep(0.05)
    return _nothing


def _damage_files(view: JobView) -> Undo:
    history = view.folder.history_db
    with contextlib.ExitStack() as opened:
        # open all before writing any: once one is found to be damaged, all are set aside
        files = []
        for path in (history, history.with_name(f"{history.name}-wal")):
            with contextlib.suppress(FileNotFoundError):
                files.append(opened.enter_context(path.open("r+b")))
        for file in files:  # without SQLite's knowledge: the same file, with the same length
            size = os.fstat(file.fileno()).st_size
            file.write((GARBAGE * (size // len(GARBAGE) + 1))[:size])
    view.folder.node_file(view.host).write_bytes(GARBAGE)
    return _nothing


def _fill_disk(view: JobView) -> Undo:
    filler = view.folder.path.parent / "filler"
    room = os.statvfs(filler.parent)
    if room.f_blocks * room.f_frsize > 1 << 30:
        raise UsageError(f"{filler.parent} is on a large file system, and this would fill it")
    over = threading.Event()
    thread = threading.Thread(target=_keep_filling, args=(filler, over), daemon=True)
    thread.start()

    def undo() -> None:
        over.set()
        thread.join()
        filler.unlink(missing_ok=True)

    return undo


def _keep_filling(filler: Path, over: threading.Event) -> None:
    """Use up all free space, including what is freed later, like a process that fills a disk."""
    with filler.open("wb", buffering=0) as file:
        while not over.is_set():
            for piece in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * piece) == piece:
                        pass
            over.wait(FILL_EVERY_S)


_OUTSIDE: dict[str, Callable[[JobView], Undo]] = {
    "supervisor-killed": _kill_supervisor,
    "guardian-killed": _kill_guardian,
    "agent-killed": _kill_agent,
    "tmux-killed": _kill_tmux,
    "terminal-closed": _close_terminal,
    "corrupt-files": _damage_files,
    "disk-full": _fill_disk,
}
