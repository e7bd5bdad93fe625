"""Fetches other nodes' logs and evidence to the head's run folder when someone views them.

The originals stay on the node that wrote them. A viewer asks the head (`FetchLogs`,
`FetchEvidence`) once a second; with each request, the head asks the nodes for new data and writes
it to the usual path, at the same offset. The part of a log that is not fetched is a hole at its
start, as if it had been dropped. So readers of logs and evidence only read local files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import RunFolder, log_name
from ddptop_runner.model import protocol as pt
from ddptop_runner.store import logs

ANSWER_S = 5.0
"""How long to wait for the nodes' data of a log."""
MOST_BYTES = 512 * 1024
"""Limit for one answer: it is one line on the link, and other messages wait for it."""
TAIL_BYTES = 1 << 20
"""Fetched first from a log that is viewed by itself; the rest follows."""
TAIL_OF_EACH = 64 * 1024
"""Fetched from each log if all are viewed."""
BLOCK = 4096
"""A hole consists of whole blocks."""
MOST_FILES = 10_000
MOST_EVIDENCE_BYTES = 64 << 20
"""Limit for one node."""
MOST_ANSWERS = 256
"""Limit for one node's evidence, and for the ends of its logs of one attempt."""

_WHERE = re.compile(r"logs/attempt-\d{1,9}|evidence/attempt-(\d{1,9})-[a-z]{1,20}(-\d{1,6})?")
_OF_A_RANK = re.compile(r"-rank-(\d{1,9})(?!\d)")

Ask = Callable[[str, pt.ReadFiles, type[pt.Pieces]], Awaitable[pt.Pieces]]
"""Sends a request to a host; DdptopError if it is unreachable."""


# -- on the node -----------------------------------------------------------------------------------


def read_new(folder: RunFolder, wanted: pt.ReadFiles) -> pt.Pieces:
    """New data in files of a node's run folder.

    Raises:
        UsageError: the request names something other than logs and evidence.
    """
    if not _WHERE.fullmatch(wanted.where):
        raise UsageError(f"{wanted.where!r} is neither logs nor evidence of an attempt")
    directory = folder.path / wanted.where
    names = _names(directory) if wanted.names is None else wanted.names[:MOST_FILES]
    pieces: list[pt.Piece] = []
    left, is_more = MOST_BYTES, False
    fair = max(BLOCK, MOST_BYTES // max(1, len(names)))
    for most in (fair, MOST_BYTES):  # the unused share of quiet files goes to busy ones
        taken = {piece.name for piece in pieces}
        for name in names:
            if name in taken or not bounded.is_file_name(name):
                continue
            try:
                piece, more = _piece(directory / name, wanted, min(most, left))
            except OSError:
                continue
            if more and most == fair and left > fair and fair < MOST_BYTES:
                continue  # left for the second round
            is_more = is_more or more
            if piece is not None:
                pieces.append(piece)
                left -= len(piece.data)
    return pt.Pieces(pieces=pieces, more=is_more)


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(one.name for one in entries if one.is_file(follow_symlinks=False))[
                :MOST_FILES
            ]
    except OSError:
        return []


def _piece(path: Path, wanted: pt.ReadFiles, most: int) -> tuple[pt.Piece | None, bool]:
    """(the next part of a file, if any; whether there is more before or after it)."""
    with logs.LogFile(path) as file:
        first, end = max(0, file.first - 1), file.end  # include the newline before the first line
        known = wanted.known.get(path.name)
        anew = known is not None and known[1] > end
        if known is None or anew:
            tail = end if wanted.tail_bytes is None else max(0, wanted.tail_bytes)
            known_from = known_to = max(first, (end - tail) // BLOCK * BLOCK)
        else:
            known_from, known_to = max(first, known[0]), max(first, known[1])
        start, stop = known_to, min(end, known_to + max(0, most))
        if known_to >= end and wanted.whole and not anew:
            start, stop = max(first, -(-(known_from - most) // BLOCK) * BLOCK), known_from
        data = file.between(start, stop) if stop > start else b""
        before = wanted.whole and min(start, known_from) > first
        more = max(stop, known_to) < end or before
        if not data and not anew:
            return None, more
        return (
            pt.Piece(
                name=path.name,
                offset=start,
                data=data,
                written_at=file.written_at,
                anew=anew,
            ),
            more,
        )


# -- on the head -----------------------------------------------------------------------------------


class Fetcher:
    """Fetches the nodes' logs and evidence to the head's run folder.

    Args:
        folder: the job's run folder on the head.
        ask: sends a request to a node.
        nodes: by host, each node's wall clock minus the head's, in seconds.
        hosts: the host of each rank in an attempt. A node's word on other ranks is not taken.
    """

    def __init__(
        self,
        folder: RunFolder,
        ask: Ask,
        nodes: Callable[[], Mapping[str, float | None]],
        hosts: Callable[[int], Mapping[int, str]],
    ) -> None:
        self._folder = folder
        self._ask = ask
        self._nodes = nodes
        self._hosts = hosts
        self._from: dict[Path, int] = {}
        """By log, where the fetched part begins."""
        self._evidence: dict[str, asyncio.Task[None]] = {}
        self.silent: dict[str, str] = {}
        """By host, why it did not answer the last request."""

    async def command(self, request: pt.FetchLogs | pt.FetchEvidence) -> pt.SilentHosts:
        """Carry out a viewer's request.

        Raises:
            UsageError: it is not the name of an evidence folder.
        """
        if isinstance(request, pt.FetchEvidence):
            await self.take_evidence(request.name)
        else:
            await self.take_logs(request.attempt, request.ranks)
        return pt.SilentHosts(why=dict(self.silent))

    async def take_logs(self, attempt: int, ranks: Collection[int] | None) -> None:
        """Fetch new data once of the logs of these ranks, or of all if None."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._logs(attempt, ranks), ANSWER_S)

    async def take_ends(self, attempts: Collection[int], most_s: float = 10.0) -> None:
        """Fetch the ends of all logs of these attempts; what is not here by then never comes."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(self._to_the_end, attempts)), most_s)

    async def _to_the_end(self, attempt: int) -> None:
        for _ in range(MOST_ANSWERS):
            if not await self._logs(attempt, None):
                return

    async def take_evidence(self, name: str, most_s: float = 20.0) -> None:
        """Fetch each node's evidence with that name below `evidence/`.

        A rank's files keep their names; others, which every node has, get the host in their name.

        Raises:
            UsageError: it is not the name of an evidence folder.
        """
        where = f"evidence/{name}"
        if not _WHERE.fullmatch(where):
            raise UsageError(f"{name!r} is not an evidence folder")
        task = self._evidence.get(name)
        if task is None or task.done():
            task = self._evidence[name] = asyncio.create_task(self._all_evidence(where))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), most_s)

    # -- logs --------------------------------------------------------------------------------------

    async def _logs(self, attempt: int, ranks: Collection[int] | None) -> bool:
        """Fetch once from each node with one of these logs; returns whether there is more.

        Of each of all logs, only the end is fetched.
        """
        where = f"logs/attempt-{attempt}"
        by_host: dict[str, list[str]] = {}
        for rank, host in self._hosts(attempt).items():
            if not ranks or rank in ranks:
                by_host.setdefault(host, []).append(log_name(rank))
        work = []
        for host, names in by_host.items():
            fetched = [one for one in names if self._folder.path / where / one in self._from]
            wanted = pt.ReadFiles(
                where=where,
                names=names,
                known=self._known(where, names if ranks else fetched),
                tail_bytes=TAIL_BYTES if ranks else TAIL_OF_EACH,
                whole=bool(ranks),
            )
            work.append(self._take(host, wanted))
        return any(await asyncio.gather(*work))

    def _known(self, where: str, names: Collection[str]) -> dict[str, tuple[int, int]]:
        found = {}
        for name in names:
            path = self._folder.path / where / name
            with contextlib.suppress(OSError), logs.LogFile(path) as file:
                if path not in self._from:
                    self._from[path] = file.first
                found[name] = (self._from[path], file.end)
        return found

    async def _take(self, host: str, wanted: pt.ReadFiles) -> bool:
        answer = await self._answer(host, wanted)
        asked = {one.name: one for one in answer.pieces if one.name in (wanted.names or ())}
        for piece in asked.values():
            with contextlib.suppress(OSError):
                self._write(self._folder.path / wanted.where / piece.name, piece, host)
        return answer.more and bool(asked)

    def _write(self, path: Path, piece: pt.Piece, host: str) -> None:
        """Write a part of a log at its offset.

        Raises:
            OSError: it cannot be written.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened(path) as fd:
            end = os.fstat(fd).st_size
            if piece.anew or piece.offset > end:  # a gap would read as zeros
                os.ftruncate(fd, 0)
                self._from[path] = piece.offset
            _write_at(fd, piece.data, piece.offset)
        self._from[path] = min(piece.offset, self._from.get(path, piece.offset))
        at = piece.written_at - (self._nodes().get(host) or 0.0)
        with contextlib.suppress(OverflowError):  # a node may send anything
            os.utime(path, (at, at))

    # -- evidence ----------------------------------------------------------------------------------

    async def _all_evidence(self, where: str) -> None:
        await asyncio.gather(*(self._evidence_of(host, where) for host in self._nodes()))

    async def _evidence_of(self, host: str, where: str) -> None:
        known: dict[str, tuple[int, int]] = {}
        fetched = 0
        for _ in range(MOST_ANSWERS):
            before = fetched
            answer = await self._answer(host, pt.ReadFiles(where=where, known=known))
            for piece in answer.pieces:
                if not bounded.is_file_name(piece.name) or piece.name.startswith("."):
                    continue
                if len(known) > MOST_FILES:
                    return
                try:
                    fetched += self._write_evidence(host, where, piece)
                except OSError:
                    return
                known[piece.name] = (0, piece.offset + len(piece.data))
            if not answer.more or fetched == before or fetched > MOST_EVIDENCE_BYTES:
                return

    def _write_evidence(self, host: str, where: str, piece: pt.Piece) -> int:
        folder = self._folder.path / where
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened(folder / self._evidence_name(host, where, piece.name)) as fd:
            if not piece.offset:
                os.ftruncate(fd, 0)
            _write_at(fd, piece.data, piece.offset)
        return len(piece.data)

    def _evidence_name(self, host: str, where: str, name: str) -> str:
        """A file of a rank of that node is unique, so it keeps its name."""
        attempt, rank = _WHERE.fullmatch(where), _OF_A_RANK.search(name)
        if attempt and rank and self._hosts(int(attempt[1])).get(int(rank[1])) == host:
            return name
        path, safe = Path(name), re.sub(r"[^A-Za-z0-9_.-]", "_", host)
        return f"{path.stem}-{safe}{path.suffix}"

    async def _answer(self, host: str, wanted: pt.ReadFiles) -> pt.Pieces:
        try:
            found = await self._ask(host, wanted, pt.Pieces)
            if sum(len(piece.data) for piece in found.pieces) > 2 * MOST_BYTES:
                raise DdptopError(f"{host} sent more than was asked for")
        except DdptopError as error:
            self.silent[host] = str(error)
            return pt.Pieces()
        self.silent.pop(host, None)
        return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A file of the run folder opened for writing, created if missing; does not follow links.

    Raises:
        OSError: something else is in its place.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count
