"""Logs of ranks on other hosts, through a head's control socket and its real fetcher."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ddptop.logs.reader import LogReader, LogView
from tests.support.builders import make_spec, put_job
from tests.support.head_nodes import placement, ranks_and_devices

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.jobs.far_files import FarFiles
from ddptop_runner.model import protocol as pt
from ddptop_runner.node.fetch import Fetcher, read_new
from ddptop_runner.node.server import ControlServer
from ddptop_runner.store import logs


def _hosts(attempt: int) -> dict[int, str]:
    return {0: "a", 1: "a", 2: "b", 3: "b"}


class Head:
    """A head's control socket; nodes `a` and `b` are folders."""

    def __init__(self, folder: RunFolder, place: Path) -> None:
        self.folder = folder
        self.nodes = {host: RunFolder(place / host) for host in ("a", "b")}
        self.gone: set[str] = set()
        self.asked: list[type[pt.Message]] = []
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._up.wait(10)

    def write(self, host: str, rank: int, text: str, attempt: int = 0) -> None:
        path = self.nodes[host].log_file(attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    async def _ask(self, host: str, request: pt.ReadFiles, kind: object) -> pt.Pieces:
        if host in self.gone:
            raise DdptopError(f"{host} is out of reach")
        return read_new(self.nodes[host], request)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        fetcher = Fetcher(self.folder, self._ask, lambda: dict.fromkeys(self.nodes, 0.0), _hosts)

        async def command(request: pt.SupervisorRequest) -> pt.Reply:
            self.asked.append(type(request))
            assert isinstance(request, pt.FetchLogs | pt.FetchEvidence)
            return await fetcher.command(request)

        async def begin() -> None:
            server = ControlServer(self.folder.control_socket, command)
            await server.start()
            self._server = server
            self._up.set()

        self._loop.create_task(begin())
        self._loop.run_forever()

    def close(self) -> None:
        def end() -> None:
            self._server.close()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()


@pytest.fixture
def head(ddptop_home: Path, tmp_path: Path) -> Iterator[Head]:
    ranks, gpus = ranks_and_devices(per_host=2)
    alive = {"ranks": ranks, "gpus": gpus, "guardian": procs.identify(os.getpid())}
    folder = put_job(snapshot=alive, placement=placement(per_host=2), nproc=4)
    found = Head(folder, tmp_path)
    yield found
    found.close()


Cli = Callable[..., Any]


def test_a_log_of_another_host_is_printed(head: Head, ddptop_cli: Cli):
    head.write("b", 3, "one\ntwo\n")
    shown = ddptop_cli("logs", "train", "-r", "3")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "one\ntwo\n", "")


def test_the_logs_of_all_hosts_are_printed(head: Head, ddptop_cli: Cli):
    for host, rank in (("a", 0), ("a", 1), ("b", 2), ("b", 3)):
        head.write(host, rank, f"line of {rank}\n")
    shown = ddptop_cli("logs", "train", "-r", "all")
    assert shown.stdout.splitlines() == [f"[rank {rank}] line of {rank}" for rank in range(4)]


def test_a_host_out_of_reach_is_named(head: Head, ddptop_cli: Cli):
    head.write("a", 0, "zero\n")
    head.gone = {"b"}
    shown = ddptop_cli("logs", "train", "-r", "all")
    assert shown.stdout == "[rank 0] zero\n"
    assert shown.stderr == "ddptop: b is out of reach\n"


def test_a_reader_that_wants_a_log_sees_it_grow(head: Head, wait_until: Callable[..., None]):
    far = FarFiles()
    head.write("b", 3, "one\n")
    path = head.folder.log_file(0, 3)
    far.want_log(head.folder, None, 3)
    wait_until(lambda: path.exists() and logs.last_lines(path, 1) == ["one"])
    wait_until(lambda: far.want_log(head.folder, None, 3) is not None)
    known = far.want_log(head.folder, None, 3)
    assert known is not None
    assert (known.attempt, known.ranks, known.hosts) == (0, (0, 1, 2, 3), ("a", "a", "b", "b"))
    head.write("b", 3, "two\n")

    def has_grown() -> bool:
        far.want_log(head.folder, None, 3)
        return logs.last_lines(path, 1) == ["two"]

    wait_until(has_grown)


@pytest.fixture
def ended(ddptop_home: Path) -> RunFolder:
    """A job that has ended; its node `b` still has logs that were not fetched."""
    ranks, gpus = ranks_and_devices(per_host=2)
    placed = placement(per_host=2)
    nodes = [msgspec.structs.replace(node, members="/state/members") for node in placed.nodes]
    placed = msgspec.structs.replace(placed, nodes=nodes)
    was = {"ranks": ranks, "gpus": gpus, "state": "failed"}
    folder = put_job(snapshot=was, placement=placed, nproc=4, job_id="train@1")
    log = folder.log_file(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("all of it\n")
    return folder


THERE = "may be on b: ssh b cat /state/members/train@1.1/logs/attempt-0/rank-3.log"


def write_end(path: Path) -> None:
    with path.open("wb") as file:
        file.seek(64 * 4096)
        file.write(b"cut\nthe end\n")


def test_a_log_that_was_not_fetched_names_its_place(ended: RunFolder, ddptop_cli: Cli):
    said = f"ddptop: rank 3's log was not fetched completely; the rest {THERE}"
    shown = ddptop_cli("logs", "train", "-r", "3")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.splitlines() == [
        said,
        "ddptop: rank 3 of train has no log for attempt 0; ranks with one: 0",
    ]
    ended.log_file(0, 0).rename(ended.path / "elsewhere")
    shown = ddptop_cli("logs", "train", "-r", "3")
    assert shown.stderr.splitlines() == [said, "ddptop: train has no log"]
    (ended.path / "elsewhere").rename(ended.log_file(0, 0))
    write_end(ended.log_file(0, 3))
    shown = ddptop_cli("logs", "train", "-r", "3", "-n", "1")
    assert (shown.returncode, shown.stdout) == (0, "the end\n")
    assert shown.stderr == f"{said}\n"
    assert ddptop_cli("logs", "train", "-r", "0").stderr == ""


def test_the_pane_of_a_log_that_was_not_fetched_names_its_place(
    ended: RunFolder, wait_until: Callable[..., None]
):
    told: list[Any] = []
    reader = LogReader(ended, told.append)
    reader.is_live = False
    reader.start()
    try:
        reader.open(1, LogView(whose=3))
        wait_until(lambda: [m for m in told if getattr(m, "remedy", "") == f"it {THERE}"])
        assert told[-1].words == "rank 3's log of attempt 0 was not fetched"
        write_end(ended.log_file(0, 3))
        note = f"──── 256 KiB of earlier output {THERE} ────"
        wait_until(lambda: getattr(told[-1], "page", None))
        assert [row.text for row in told[-1].page.rows] == [note, "the end"]
        reader.open(2, LogView(whose=0))
        wait_until(lambda: told[-1].generation == 2 and getattr(told[-1], "page", None))
        assert [row.text for row in told[-1].page.rows] == ["all of it"]
    finally:
        reader.stop()


def test_job_on_one_machine_contacts_no_other(ddptop_home: Path):
    folder = put_job("alone", snapshot={"guardian": procs.identify(os.getpid())})
    far = FarFiles()
    assert far.fetch_log(folder, None, None) is None
    assert far.want_log(folder, None, 0) is None
    assert make_spec().placement is None
