"""Logs and evidence of nodes are fetched into the head's run folder, at the usual paths."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model import protocol as pt
from ddptop_runner.node import fetch
from ddptop_runner.node.fetch import Fetcher, read_new
from ddptop_runner.store import logs


class Cluster:
    """A head, and nodes that respond with JSON, as over a link."""

    def __init__(self, place: Path) -> None:
        self.head = RunFolder(place / "head")
        self.nodes = {host: RunFolder(place / host) for host in ("a", "b")}
        self.clock = {"a": 0.0, "b": 0.0}
        self.gone: set[str] = set()
        self.asked: list[tuple[str, pt.ReadFiles]] = []
        for folder in (self.head, *self.nodes.values()):
            folder.path.mkdir()
        self.fetcher = Fetcher(self.head, self.ask, lambda: self.clock, self.hosts)

    def hosts(self, attempt: int) -> dict[int, str]:
        return {rank: "a" if rank < 4 else "b" for rank in range(8)} if attempt < 2 else {}

    async def ask(self, host: str, request: pt.ReadFiles, kind: type[pt.Pieces]) -> pt.Pieces:
        self.asked.append((host, request))
        if host in self.gone:
            raise DdptopError(f"{host} is out of reach", "wait")
        line = pt.line(read_new(self.nodes[host], request))
        assert len(line) < 1 << 20, "one line of the link"
        return msgspec.json.decode(line, type=kind)

    def write(self, host: str, rank: int, text: str | bytes, attempt: int = 0) -> Path:
        path = self.nodes[host].log_file(attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return path

    def here(self, rank: int, attempt: int = 0) -> bytes:
        return self.head.log_file(attempt, rank).read_bytes()

    def want(self, *ranks: int, attempt: int = 0) -> None:
        """Request a log like a viewer, until nothing more arrives."""

        async def work() -> None:
            request = pt.FetchLogs(attempt=attempt, ranks=list(ranks) or None)
            for _ in range(21):
                await self.fetcher.command(request)

        asyncio.run(work())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    return Cluster(tmp_path)


def test_at_the_end_of_the_job_the_very_end_of_each_log_comes(cluster):
    """Also a log whose last megabyte was fetched in part, as for the rank that failed."""
    cluster.write("b", 4, b"a line\n" * 300_000 + b"ValueError: bad batch\n")
    cluster.write("b", 5, b"five\n")

    async def work() -> None:
        await cluster.fetcher.take_logs(0, [4])
        await cluster.fetcher.take_ends([0])

    asyncio.run(work())
    assert cluster.here(4).endswith(b"ValueError: bad batch\n")
    assert cluster.here(5) == b"five\n"


def test_the_logs_of_all_ranks_come_from_their_nodes(cluster):
    cluster.write("a", 0, "zero\n")
    cluster.write("b", 4, "four\n")
    cluster.want()
    assert (cluster.here(0), cluster.here(4)) == (b"zero\n", b"four\n")
    assert logs.ranks(cluster.head, 0) == [0, 4]


def test_of_a_long_log_the_end_comes_first_then_the_rest(cluster):
    text = b"".join(b"line %07d of the log\n" % number for number in range(150_000))
    cluster.write("b", 4, text)

    asyncio.run(cluster.fetcher.take_logs(0, [4]))
    first = logs.last_lines(cluster.head.log_file(0, 4), 1)
    assert first[0].startswith("line ")
    with logs.LogFile(cluster.head.log_file(0, 4)) as file:
        assert file.first > 1_000_000, "the head is a hole"
        assert b"\0" not in file.between(file.first, file.end)
    cluster.want(4)
    assert cluster.here(4) == text


def test_of_many_logs_only_the_ends_come(cluster):
    text = b"".join(b"line %07d of the log\n" % number for number in range(50_000))
    for rank in range(4):
        cluster.write("a", rank, text)
    cluster.want()
    for rank in range(4):
        path = cluster.head.log_file(0, rank)
        assert logs.last_lines(path, 1) == ["line 0049999 of the log"]
        assert path.stat().st_blocks * 512 < 2 * fetch.TAIL_OF_EACH


def test_a_head_that_was_dropped_on_the_node_stays_dropped_here(cluster):
    path = cluster.write("b", 4, b"")
    with path.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"middle of a line\nfirst\nlast\n")
    cluster.want(4)
    with logs.LogFile(cluster.head.log_file(0, 4)) as mine, logs.LogFile(path) as theirs:
        assert mine.first == theirs.first
    assert logs.last_lines(cluster.head.log_file(0, 4), 5)[-2:] == ["first", "last"]


def test_truncated_log_starts_over(cluster):
    path = cluster.write("b", 4, "long ago\n")
    cluster.want(4)
    path.write_text("new\n")
    cluster.want(4)
    assert cluster.here(4) == b"new\n"


def test_a_node_out_of_reach_is_named_and_the_others_come(cluster):
    cluster.write("a", 0, "zero\n")
    cluster.write("b", 4, "four\n")
    cluster.gone = {"b"}
    cluster.want()
    assert cluster.here(0) == b"zero\n"
    assert "b is out of reach" in cluster.fetcher.silent["b"]
    cluster.gone = set()
    cluster.want()
    assert cluster.here(4) == b"four\n"
    assert cluster.fetcher.silent == {}


def test_evidence_of_all_nodes_lies_in_one_folder(cluster):
    for host, rank in (("a", 0), ("b", 4)):
        kept = cluster.nodes[host].evidence_dir / "attempt-1-failure"
        kept.mkdir(parents=True)
        (kept / f"stacks-rank-{rank}.txt").write_text(f"stack of {rank}")
        (kept / "devices.json").write_text(f'"{host}"')
        (kept / f"flight-rank-{rank}.json").write_bytes(b"f" * 1_500_001)
    asyncio.run(cluster.fetcher.take_evidence("attempt-1-failure"))
    here = cluster.head.evidence_dir / "attempt-1-failure"
    assert {path.name: path.stat().st_size for path in here.iterdir()} == {
        "stacks-rank-0.txt": 10,
        "stacks-rank-4.txt": 10,
        "flight-rank-0.json": 1_500_001,
        "flight-rank-4.json": 1_500_001,
        "devices-a.json": 3,
        "devices-b.json": 3,
    }


@pytest.mark.parametrize("where", ["../..", "logs", "logs/attempt-0/..", "job.json", "logs/../x"])
def test_node_serves_only_logs_and_evidence(cluster, where):
    with pytest.raises(UsageError):
        read_new(cluster.nodes["a"], pt.ReadFiles(where=where))


def test_a_node_follows_no_link_and_no_name_out_of_the_folder(cluster, tmp_path):
    (tmp_path / "secret").write_text("secret")
    path = cluster.write("a", 0, "zero\n")
    (path.parent / "rank-1.log").symlink_to(tmp_path / "secret")
    names = ["rank-1.log", "../../../secret", "rank-0.log"]
    found = read_new(cluster.nodes["a"], pt.ReadFiles(where="logs/attempt-0", names=names))
    assert [one.name for one in found.pieces] == ["rank-0.log"]


def test_names_that_a_node_makes_up_are_not_written(cluster, tmp_path):
    ask, _ = answering(
        *({"name": name} for name in ("../../job.json", "x.log", ".hidden", "rank-1.log")),
        more=False,
    )

    cluster.fetcher = Fetcher(cluster.head, ask, lambda: {"a": 0.0}, cluster.hosts)
    cluster.want()
    asyncio.run(cluster.fetcher.take_evidence("attempt-0-hang"))
    written = {str(p.relative_to(cluster.head.path)) for p in cluster.head.path.rglob("*.*")}
    assert written == {
        "logs/attempt-0/rank-1.log",
        "evidence/attempt-0-hang/x-a.log",
        "evidence/attempt-0-hang/rank-1-a.log",
    }


def answering(*pieces: dict[str, Any], more: bool = True) -> tuple[fetch.Ask, list[str]]:
    """(what host a always answers, while b is quiet; the hosts that were asked)."""
    asked: list[str] = []

    async def ask(host: str, request: pt.ReadFiles, kind: object) -> pt.Pieces:
        asked.append(host)
        if host != "a":
            return pt.Pieces()
        whole = {"offset": 0, "data": b"x", "written_at": 0.0}
        return pt.Pieces(pieces=[pt.Piece(**{**whole, **piece}) for piece in pieces], more=more)

    return ask, asked


@pytest.mark.parametrize("rank", [4, 8])
def test_a_node_cannot_write_logs_and_evidence_of_ranks_that_are_not_its_own(cluster, rank):
    cluster.write("b", 4, "four\n")
    cluster.want()
    ask, _ = answering({"name": f"rank-{rank}.log"}, {"name": f"stacks-rank-{rank}.txt"})
    cluster.fetcher = Fetcher(cluster.head, ask, lambda: {"a": 0.0}, cluster.hosts)
    cluster.want()
    cluster.want(rank)
    cluster.want(3, attempt=7)
    asyncio.run(cluster.fetcher.take_evidence("attempt-0-hang"))
    assert cluster.here(4) == b"four\n"
    assert logs.ranks(cluster.head, 0) == [4]
    assert not cluster.head.log_file(7, 3).exists()
    kept = cluster.head.evidence_dir / "attempt-0-hang"
    assert {path.name for path in kept.iterdir()} >= {f"stacks-rank-{rank}-a.txt"}
    assert not (kept / f"stacks-rank-{rank}.txt").exists()


def test_a_node_that_sends_more_than_was_asked_for_is_not_heard(cluster):
    ask, _ = answering({"name": "rank-0.log", "data": b"x" * (2 * fetch.MOST_BYTES + 1)})
    cluster.fetcher = Fetcher(cluster.head, ask, lambda: {"a": 0.0}, cluster.hosts)
    cluster.want()
    assert not cluster.head.log_file(0, 0).exists()
    assert "more than was asked for" in cluster.fetcher.silent["a"]


def test_a_link_on_the_head_is_not_written_through(cluster, tmp_path):
    (tmp_path / "other").write_text("mine")
    log = cluster.head.log_file(0, 4)
    log.parent.mkdir(parents=True)
    log.symlink_to(tmp_path / "other")
    cluster.write("b", 4, "four\n")
    cluster.want(4)
    assert (tmp_path / "other").read_text() == "mine"
