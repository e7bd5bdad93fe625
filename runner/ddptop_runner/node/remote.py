"""`ddptop-node`: the node's end of the head's link, JSON lines on standard input and output.

It is stateless. It starts the node's part of a job, forwards what the part publishes, and passes
requests to it; if the link breaks, the next one continues after the last event that the head has.
Processes that it starts are detached from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import boottime_s, poll, utc_now
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.base.files import belongs
from ddptop_runner.base.paths import (
    RunFolder,
    create_local_dir,
    local_dir_reason,
    members_dir,
    require_own,
    state_home,
)
from ddptop_runner.base.start import keep_files_private
from ddptop_runner.host import procs, survival
from ddptop_runner.host.addresses import interface_of, is_loopback, of_interfaces
from ddptop_runner.job.registry import JobView, is_locked, read_job
from ddptop_runner.launch.gpus import usage
from ddptop_runner.launch.gpus.choice import job_environment
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import NodeSnapshot, read_snapshot
from ddptop_runner.model.spec import Rendezvous, write_spec
from ddptop_runner.model.words import LIVE_STATES
from ddptop_runner.node import adoption, control, fetch
from ddptop_runner.node.ending import end_here, guards_of, is_stopped, restore_folder
from ddptop_runner.node.guardian_start import start_guardian
from ddptop_runner.store.history import HistoryReader
from ddptop_runner.version import __version__

LINE_BYTES = 32 << 20
"""Longest line; a snapshot of a few hundred ranks takes less than a megabyte."""
RECONNECT_S = 0.2
GUARD_EVERY_S = 2.0
ABSENT_AFTER_S = 3.0
"""A restarted supervisor binds its socket sooner."""
SUPERVISOR_S = 5.0
"""Time for a supervisor to write its first snapshot, or its last one after the end's event."""
POLL_S = 0.02
YIELD_S = 20.0
"""Time for a later launch that competes for the same machines to end what it started."""
KEPT_S = 14 * 86400.0
"""How long a node keeps an ended job's files, counted from its last output."""
REQUEST_S = 60.0
STOP_S = 3.0
"""Time for a supervisor to accept an order to stop."""
UNSENT_BYTES = 1 << 20
HEAD_SILENT_S = 30.0
"""A following head pings every 5 s; if its host is gone, it may never close the link."""
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def member_folder(node_job_id: str) -> RunFolder:
    """The run folder of a node's part of a job, which `ddptop ls` does not list as a job."""
    return RunFolder(members_dir() / node_job_id)


def node_job_id(job_id: str, index: int) -> str:
    """The ID of a node's part of a job; nodes on the same machine end only their own parts."""
    return f"{job_id}.{index}"


# -- requests handled by this command --------------------------------------------------------------


def start(order: pt.Start) -> None:
    """Start the guardian of the node's part.

    Raises:
        DdptopError: it already runs or does not come up.
    """
    spec = order.spec
    if spec.membership is None or not bounded.is_file_name(spec.job_id):
        raise ControlError("not the spec of a node's part of a job")
    if not Path(spec.cwd).is_dir():
        raise ControlError(f"the working directory {spec.cwd} does not exist on this host")
    folder = member_folder(spec.job_id)
    require_own(state_home())
    _prune(folder)
    membership = msgspec.structs.replace(spec.membership, rendezvous=order.rendezvous)
    spec = msgspec.structs.replace(spec, membership=membership, host=procs.host_name())
    env = {**job_environment(spec.devices), **order.env, "DDPTOP_JOB_ID": spec.job_id}
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if (interface := gloo_interface(order.rendezvous, {**os.environ, **env})) is not None:
        env[GLOO_INTERFACE] = interface
    wrap = survival.plan(survival.gather(os.environ)).wrap
    deadline_s = boottime_s() + YIELD_S
    while True:
        with usage.taking() if spec.devices else contextlib.nullcontext():
            holders = [] if membership.force else usage.holders_of(spec)
            if not holders:
                _make_folders(folder)
                write_spec(folder, spec)
                start_guardian(folder, spec, env, wrap, attempt=order.attempt)
                if spec.devices:  # they show as taken once its last snapshot is replaced
                    poll(lambda: read_job(folder).is_live, SUPERVISOR_S, POLL_S)
                break
        if boottime_s() > deadline_s or not usage.will_yield(holders, spec):
            raise ControlError(usage.taken_in_words(spec, holders))
        time.sleep(RECONNECT_S)


def _make_folders(folder: RunFolder) -> None:
    """Create a part's folders.

    Raises:
        ControlError: the folder belongs to another user, or the part runs.
    """
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.path.lstat()
    if status.st_uid != os.geteuid():
        raise ControlError(
            f"refusing to start anything from {folder.path}, which {belongs(status)}"
        )
    has_room = poll(
        lambda: not _lives(folder) or _last_state(folder) is not None, SUPERVISOR_S, POLL_S
    )
    if not has_room:
        raise ControlError("the node's part of the job is already running")
    if local_dir_reason(folder):
        create_local_dir(folder)
    for needed in (folder.nodes_dir, folder.logs_dir, folder.evidence_dir / "stacks"):
        needed.mkdir(parents=True, exist_ok=True)


def _prune(new: RunFolder) -> None:
    """Delete the folders of ended parts of old jobs; the head has fetched what was viewed."""
    with contextlib.suppress(OSError):
        for path in new.path.parent.iterdir():
            old = RunFolder(path)
            with contextlib.suppress(OSError):
                age_s = time.time() - old.spec_file.stat().st_mtime
                written_s = time.time() - old.supervisor_log.stat().st_mtime
                if min(age_s, written_s) > KEPT_S and path != new.path and not is_locked(old):
                    _delete(old)


def _delete(folder: RunFolder) -> None:
    if folder.live_dir != folder.path:
        shutil.rmtree(folder.live_dir, ignore_errors=True)
    shutil.rmtree(folder.path)


def _lives(folder: RunFolder) -> bool:
    """Whether a part has a guardian or supervisor, even if its run folder was deleted."""
    return is_locked(folder) or bool(guards_of(folder, os.geteuid()))


def adopt(folder: RunFolder) -> None:
    """Start another guardian for a part of a job that needs one, and restore its run folder.

    Raises:
        DdptopError: it does not come up.
    """
    restore_folder(folder)
    if (view := _without_guardian(folder)) is not None:
        adoption.adopt(view, os.environ)


def _without_guardian(folder: RunFolder) -> JobView | None:
    """The node's part, if it continues without its guardian.

    Raises:
        DdptopError: it cannot be read.
    """
    if not folder.spec_file.exists():
        return None  # not started yet
    view = read_job(folder)
    return view if view.needs_guardian else None


def gloo_interface(rendezvous: Rendezvous, env: Mapping[str, str]) -> str | None:
    """The interface to the other nodes for gloo, which would otherwise use the host name's.

    Debian maps the host name to 127.0.1.1. None if the user has chosen an interface or none is
    found.
    """
    if GLOO_INTERFACE in env or rendezvous.nodes == 1:
        return None
    try:
        info = socket.getaddrinfo(rendezvous.address, rendezvous.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], info[1]) as probe:
            probe.connect(info[4])  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    if own.startswith("127.") and not is_loopback(rendezvous.address):
        return next((name for name, its in of_interfaces() if not is_loopback(its)), None)
    return interface_of(own)


def forget(job_id: str) -> None:
    """Delete the run folder of a node's part of a job, with its logs and evidence.

    Raises:
        ControlError: the part cannot be ended, or belongs to another user.
    """
    folder = member_folder(job_id)
    if not bounded.is_file_name(job_id):
        raise ControlError("not the ID of a node's part of a job")
    owner = os.geteuid()
    end_here(guards_of(folder, owner), job_id, owner, 0.0)  # the job may have ended without it
    try:
        status = folder.path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner:
        raise ControlError(f"not deleting {folder.path}, which {belongs(status)}")
    if is_locked(folder):  # on another machine
        raise ControlError(
            "the node's part of the job is still running", f"ddptop kill {job_id} ends it there"
        )
    _delete(folder)


def stop(folder: RunFolder, order: pt.StopAsked) -> pt.Reply:
    """Have the part's supervisor end it.

    Guards that are paused are killed: the head repeats the order for the next supervisor.

    Raises:
        ControlError: the supervisor does not answer.
    """
    try:
        return control.exchange(folder, order, STOP_S)
    except ControlError:
        guards = guards_of(folder, os.geteuid())
        procs.signal_all(filter(is_stopped, guards), signal.SIGKILL)
        raise


# -- the link --------------------------------------------------------------------------------------


class Remote:
    """One link, from the first line to the end of standard input.

    Args:
        write: sends one line.
        unsent: returns the number of bytes that the link has not accepted yet.
        end: ends the link and reports the reason to the head, whose next link starts over.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        unsent: Callable[[], int] = lambda: 0,
        end: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._write = write
        self._end = end
        self._unsent = unsent
        self._folder: RunFolder | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._guarding: asyncio.Task[None] | None = None
        self._seq = 0

    @property
    def is_following(self) -> bool:
        """Whether a head follows the node's part."""
        return self._following is not None and not self._following.done()

    def send(self, report: pt.Report) -> None:
        """Send one report to the head."""
        self._write(pt.line(report))

    def greet(self) -> None:
        """Send the first line."""
        self.send(
            pt.Hello(
                ddptop=__version__,
                boottime_s=boottime_s(),
                now=utc_now(),
            )
        )

    def take(self, order: pt.ToNode) -> None:
        """Carry out an order of the head."""
        if isinstance(order, pt.Follow):
            if not bounded.is_file_name(order.job_id):
                return
            self._folder, self._seq = member_folder(order.job_id), order.after_seq
            for task in (self._following, self._guarding):
                if task is not None:
                    task.cancel()
            self._following = self._spawn(self._follow(self._folder))
            self._guarding = self._spawn(self._guard(self._folder))
        else:
            self._spawn(self._answer(order))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, order: pt.Ask) -> None:
        try:
            reply = await asyncio.to_thread(self._reply, order.request)
        except DdptopError as error:
            reply = pt.refused(error)
        except (OSError, TypeError, ValueError) as error:
            reply = pt.Refused(error=f"{type(error).__name__}: {error}")
        self.send(pt.Answer(id=order.id, reply=reply))

    def _reply(self, request: pt.NodeRequest) -> pt.Reply:
        if isinstance(request, pt.Ping):
            return pt.Done()
        if isinstance(request, pt.Start):
            start(request)
            return pt.Done()
        if isinstance(request, pt.Forget):
            forget(request.job_id)
            return pt.Done()
        if isinstance(request, pt.Preflight):
            from ddptop_runner.launch import preflight  # not needed by a link that only follows

            return pt.Found(data=preflight.answer(request.question))
        if self._folder is None:
            raise ControlError("no job is followed")
        if isinstance(request, pt.ReadFiles):
            return fetch.read_new(self._folder, request)
        if isinstance(request, pt.GetEnvironment):
            return pt.Found(data=adoption.launch_variables(read_job(self._folder)))
        if isinstance(request, pt.StopAsked):
            return stop(self._folder, request)
        return control.exchange(self._folder, request, REQUEST_S)

    async def _follow(self, folder: RunFolder) -> None:
        """Forward what the supervisor publishes; a new supervisor binds the same path."""
        absent_since_s: float | None = None
        while True:
            # an unreadable line comes from a supervisor that died while writing it
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                absent_since_s = None if await self._stream(folder) else absent_since_s
            lives = is_locked(folder)
            try:
                self._forward_rest(folder)
            except (DdptopError, OSError, sqlite3.Error) as error:
                self._end(f"{folder.history_db} cannot be read ({error})")
                return
            if not lives and (last := _last_state(folder)) is not None:
                self.send(pt.NodeState(snapshot=msgspec.structs.replace(last, memory={})))
                return
            now_s = boottime_s()
            absent_since_s = absent_since_s or now_s
            if now_s - absent_since_s > ABSENT_AFTER_S and not (lives or _is_adopted(folder)):
                if not _lives(folder):
                    self.send(pt.NodeFact(fact=pt.LinkMade(is_there=False)))
                absent_since_s = now_s
            await asyncio.sleep(RECONNECT_S)

    async def _guard(self, folder: RunFolder) -> None:
        """Restore the guardian of the node's part if it has lost it; no one else checks."""
        while True:
            await asyncio.sleep(GUARD_EVERY_S)
            try:
                await asyncio.to_thread(adopt, folder)
            except (DdptopError, OSError) as error:
                sys.stderr.write(f"ddptop-node: {folder.path} cannot be adopted ({error})\n")

    async def _stream(self, folder: RunFolder) -> bool:
        """Forward one connection to the supervisor; returns whether anything was received."""
        reader, writer = await asyncio.open_unix_connection(
            str(folder.control_socket), limit=LINE_BYTES
        )
        has_received = False
        try:
            writer.write(pt.line(pt.Follow(after_seq=self._seq)))
            while (line := await reader.readline()).endswith(b"\n"):
                has_received = True
                seen = _decoder.decode(line)
                if seen.event is not None:
                    self._seq = max(self._seq, seen.event.seq)
                self._write(line)
                while self._unsent() > UNSENT_BYTES:  # the supervisor drops slow followers
                    await asyncio.sleep(RECONNECT_S)
        finally:
            writer.close()
        return has_received

    def _forward_rest(self, folder: RunFolder) -> None:
        """Forward the rest of the history, once no supervisor answers."""
        rows = HistoryReader(folder.history_db).events(silent=True, after_seq=self._seq)
        for row in rows:
            self._seq = row.seq
            self.send(pt.NodeEvent(event=row))


def _last_state(folder: RunFolder) -> NodeSnapshot | None:
    """The last snapshot of a part that has ended; None without an end."""
    last = read_snapshot(folder.node_file(procs.host_name()))
    return None if last is None or last.state in LIVE_STATES else last


def _is_adopted(folder: RunFolder) -> bool:
    """Whether its ranks may be alive while another guardian is being started."""
    with contextlib.suppress(DdptopError):
        return _without_guardian(folder) is not None
    return False


class _Numbered(msgspec.Struct):
    seq: int


class _Seen(msgspec.Struct):
    """The fields of a report that are needed to forward it."""

    event: _Numbered | None = None


_decoder = msgspec.json.Decoder(_Seen)


async def serve() -> int:
    """Serve one link on standard input and output until the head closes it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, _ = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, sys.stdout.buffer
    )
    remote = Remote(transport.write, transport.get_write_buffer_size, _end)
    remote.greet()
    while (line := await _line(reader, remote)).endswith(b"\n"):
        try:
            order = pt.decode(line, pt.ToNode)
        except msgspec.MsgspecError as error:
            sys.stderr.write(f"ddptop-node: invalid line ({error})\n")
            continue
        remote.take(order)
    os._exit(0)  # a thread may still work on a request that no one waits for


def _end(why: str) -> None:
    sys.stderr.write(f"ddptop-node: {why}\n")
    os._exit(1)


async def _line(reader: asyncio.StreamReader, remote: Remote) -> bytes:
    """The head's next line; empty if it is gone or has been silent for too long."""
    limit_s = HEAD_SILENT_S if remote.is_following else None
    try:
        return await asyncio.wait_for(reader.readline(), limit_s)
    except asyncio.TimeoutError:
        return b""


def main() -> int:
    """Serve one link."""
    kind = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        sys.stderr.write("ddptop-node: no pipe to a head; ddptop launch --hosts runs this itself\n")
        return 2
    keep_files_private()
    return asyncio.run(serve())
