"""What the users of this machine tell each other about their jobs: who has and who wants devices.

Each user writes only their own files in a directory that everybody can write to, as in /tmp; there
is no daemon. The files are advisory. One that is malformed, belongs to somebody else, or describes
processes that are gone is ignored, and without the directory every user is alone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import heapq
import os
import re
import stat
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import is_time
from ddptop_runner.base.files import belongs, wait_for_lock, write_atomic
from ddptop_runner.base.paths import runs_dir
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import ProcessId
from ddptop_runner.model.words import Base

FOLDER_VARIABLE = "DDPTOP_QUEUE_DIR"
FOLDER = "/tmp/ddptop-queue"
OPEN_TO_ALL = 0o1777
FILE_BYTES = 1 << 20
"""Of all files of one user."""
MOST_FILES = 32
"""Files of one user: one for each state folder."""
MOST_JOBS = 256
START_S = 20.0
"""A job has devices for so long before any of its processes is known."""
LOCK_S = 30.0
"""Whoever holds the lock longer is ignored."""
TRIES_APART_S = 10.0
"""Two tries that are further apart may meet different holders of the lock."""
_FILE = re.compile(r"([0-9]{1,10})-[0-9a-f]{8}\.json")
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,47}\Z")]
_Text = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9 _./@-]{1,100}\Z")]
_Time = Annotated[dt.datetime, msgspec.Meta(tz=True)]
_Keys = Annotated[list[_Text], msgspec.Meta(max_length=1024)]


class Entry(Base, frozen=True, kw_only=True):
    """A job that has devices, or waits for some."""

    job: _Name
    job_id: _Text
    devices: _Keys
    """UUIDs: those that it has, or those that it may get."""
    count: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """How many of them it waits for; 0: it has them."""
    since: _Time
    processes: Annotated[list[ProcessId], msgspec.Meta(max_length=8)] = []
    """Any of them is alive as long as the job is."""


class UserQueue(Base, frozen=True, kw_only=True):
    """The jobs of one state folder."""

    turn_at: _Time | None = None
    """When one of its queued jobs last got its devices."""
    has: Annotated[list[Entry], msgspec.Meta(max_length=MOST_JOBS)] = []
    waits: Annotated[list[Entry], msgspec.Meta(max_length=MOST_JOBS)] = []
    """In the order in which the user wants them."""
    uid: int = -1
    """The owner of the file, whatever that says."""


_not_theirs: set[tuple[str, int]] = set()
"""(name, inode) of files in the name of another user than their owner: there may be many."""
_decoder = msgspec.json.Decoder(UserQueue)


def problem() -> str | None:
    """Why users take no turns on this machine; None if they do, or it is switched off."""
    with _folder() as found:
        return found if isinstance(found, str) else None


@contextlib.contextmanager
def _folder(*, create: bool = False) -> Iterator[Path | str | None]:
    """The directory, held open so that nobody can replace it; or why it cannot be used."""
    name = os.environ.get(FOLDER_VARIABLE) or FOLDER
    if name == "off":
        yield None
        return
    try:
        if create and not os.path.lexists(name):
            os.mkdir(name)  # noqa: PTH102 - as the next line
            os.chmod(name, OPEN_TO_ALL)  # noqa: PTH101 - mkdir obeys the umask
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        yield f"{name} cannot be used ({error.strerror}); other users' jobs are not considered"
        return
    try:
        found = os.fstat(fd)
        if stat.S_IMODE(found.st_mode) == OPEN_TO_ALL:
            yield Path(f"/proc/self/fd/{fd}")
        else:
            needs = "but its mode must be 1777"
            yield f"{name} {belongs(found)}, {needs}; other users' jobs are not considered"
    finally:
        os.close(fd)


def _own_name() -> str:
    """The name of this state folder's file, which no other user can take first.

    Others cannot look into a state folder, and so do not know its inode.
    """
    try:
        inode = runs_dir().stat().st_ino
    except OSError:
        inode = 0
    place = zlib.crc32(b"%s %d" % (os.fsencode(runs_dir()), inode))
    return f"{os.geteuid()}-{place:08x}.json"


def publish(queue: UserQueue) -> None:
    """Write this state folder's jobs, unless the file has them already."""
    data = msgspec.json.encode(
        msgspec.structs.replace(
            queue, has=queue.has[:MOST_JOBS], waits=queue.waits[:MOST_JOBS], uid=-1
        )
    )
    with _folder(create=True) as folder, contextlib.suppress(OSError):
        if not isinstance(folder, Path):
            return
        file = folder / _own_name()
        with contextlib.suppress(OSError):
            if bounded.read_bytes(file, FILE_BYTES) == data:
                return
        write_atomic(file, data, mode=0o644)


def others(now: dt.datetime) -> list[UserQueue]:
    """What all other state folders have published, without what cannot be true."""
    with _folder() as folder:
        if not isinstance(folder, Path):
            return []
        found: dict[int, list[bytes]] = {}
        own, known_before = _own_name(), _not_theirs.copy()
        _not_theirs.clear()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                named = _FILE.fullmatch(entry.name)
                if named is None or entry.name == own:
                    continue
                uid = int(named[1])
                theirs, known = found.setdefault(uid, []), (entry.name, entry.inode())
                if known in known_before:
                    _not_theirs.add(known)
                if len(theirs) >= MOST_FILES or known in known_before:
                    continue
                try:
                    owner = entry.stat(follow_symlinks=False).st_uid
                except OSError:  # replaced or deleted since
                    continue
                if owner == uid:
                    left_bytes = FILE_BYTES - sum(map(len, theirs))
                    theirs.append(_read(folder / entry.name, uid, left_bytes))
                else:
                    _not_theirs.add(known)
    queues = (_decoded(data, uid, now) for uid, theirs in found.items() for data in theirs)
    return [queue for queue in queues if queue is not None]


def _read(file: Path, uid: int, limit_bytes: int) -> bytes:
    """The content of a user's file; empty if it cannot be read, or is too large."""
    with contextlib.suppress(OSError), os.fdopen(bounded.open_regular(file), "rb") as opened:
        status = os.fstat(opened.fileno())
        if status.st_uid == uid and status.st_size <= limit_bytes:
            return opened.read(limit_bytes)
    return b""


def _decoded(data: bytes, uid: int, now: dt.datetime) -> UserQueue | None:
    try:
        queue = bounded.decode_json(_decoder, data)
    except msgspec.MsgspecError:
        return None
    turn_at = queue.turn_at if is_time(queue.turn_at) else None
    return UserQueue(
        turn_at=None if turn_at is None else min(turn_at, now),
        has=[one for one in queue.has if _is_true(one, uid, now)],
        waits=[one for one in queue.waits if one.count > 0 and _is_true(one, uid, now)],
        uid=uid,
    )


def _is_true(entry: Entry, uid: int, now: dt.datetime) -> bool:
    """Whether the job exists, as far as another user can see."""
    if not is_time(entry.since) or entry.since > now:
        return False
    if any(procs.is_alive(one) and procs.uid_of(one.pid) == uid for one in entry.processes):
        return True
    is_new = (now - entry.since).total_seconds() < START_S
    return is_new and not entry.count and not entry.processes


def last_turns(queues: Iterable[UserQueue]) -> dict[int, float]:
    """When each user's last turn was, over all state folders, in Unix seconds; 0 without one."""
    last: dict[int, float] = {}
    for queue in queues:
        turn_s = 0.0 if queue.turn_at is None else queue.turn_at.timestamp()
        last[queue.uid] = max(last.get(queue.uid, 0.0), turn_s)
    return last


def turns(queues: Collection[UserQueue]) -> list[tuple[int, Entry]]:
    """(user, job) of all that wait, in order: users take turns.

    First comes the user whose last turn was longest ago; among those without a turn, the one who
    has waited longest. Each user's next job follows only after one job of every other user.
    """
    waits: dict[int, list[Entry]] = {}
    for queue in queues:
        others = waits.get(queue.uid, [])  # in another state folder of the user
        waits[queue.uid] = list(heapq.merge(others, queue.waits, key=lambda one: one.since))
    last = last_turns(queues)
    users = [uid for uid in waits if waits[uid]]
    users.sort(key=lambda uid: (last[uid], waits[uid][0].since, uid))
    most = max((len(waits[uid]) for uid in users), default=0)
    return [(uid, waits[uid][at]) for at in range(most) for uid in users if at < len(waits[uid])]


_refused_s: tuple[float, float] | None = None
"""When the lock was first refused in a row of tries, and last."""


@contextlib.contextmanager
def locked(timeout_s: float) -> Iterator[bool]:
    """Hold the lock that all users take devices under.

    Yields:
        Whether it was acquired in time (0 tries once), there is none, or somebody has held it for
        longer than taking devices can take.
    """
    global _refused_s
    with _folder(create=True) as folder:
        fd = _lock(folder, timeout_s) if isinstance(folder, Path) else None
        if fd is None and isinstance(folder, Path):
            now_s = time.monotonic()
            began_s, last_s = _refused_s or (now_s, now_s)
            if now_s - last_s > TRIES_APART_S:  # since then, others may have held it
                began_s = now_s
            _refused_s = began_s, now_s
            yield timeout_s > 0 or now_s - began_s > LOCK_S
            return
        _refused_s = None
        try:
            yield True
        finally:
            if fd is not None:
                os.close(fd)


def _lock(folder: Path, timeout_s: float) -> int | None:
    """The lock's descriptor; None if it cannot be acquired in time."""
    file, flags = folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError):
        try:
            fd = os.open(file, flags | os.O_CREAT | os.O_EXCL)
            os.fchmod(fd, 0o444)  # to hold it, others only have to open it
        except FileExistsError:
            fd = os.open(file, flags)
        return wait_for_lock(fd, timeout_s)
    return None
