"""What ddptop-node decides by itself."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.builders import make_snapshot, make_spec

from ddptop_runner.base import paths
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import RunFolder, create_local_dir, run_folder
from ddptop_runner.host import addresses, procs
from ddptop_runner.launch.gpus import usage
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.spec import Device, JobSpec, Membership, Rendezvous, write_spec
from ddptop_runner.node import remote
from ddptop_runner.node.links import PING_S

MET = Rendezvous(run_id="a.0", address="127.0.0.1", port=29500, node_rank=0, nodes=2, first_rank=0)


@pytest.mark.parametrize(
    ("address", "interface"),
    [("127.0.0.1", "lo"), ("own-name", "eth7"), ("nowhere", None)],
)
def test_gloo_gets_an_interface_that_others_reach(monkeypatch, address, interface):
    asked = socket.getaddrinfo

    def as_debian(name: str, *rest: Any, **more: Any) -> Any:
        if name == "nowhere":
            raise socket.gaierror("Name or service not known")
        return asked("127.0.1.1" if name == "own-name" else name, *rest, **more)

    interfaces = [("lo", "127.0.0.1"), ("eth7", "192.0.2.7")]
    monkeypatch.setattr(socket, "getaddrinfo", as_debian)
    monkeypatch.setattr(remote, "of_interfaces", lambda: interfaces)
    monkeypatch.setattr(addresses, "of_interfaces", lambda: interfaces)
    met = msgspec.structs.replace(MET, address=address)
    assert remote.gloo_interface(met, {}) == interface


def test_without_a_pipe_to_a_head_it_says_so_and_ends():
    argv = [sys.executable, "-c", "from ddptop_runner.node import remote; exit(remote.main())"]
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr.count(b"\n") == 1
    assert b"no pipe to a head" in ended.stderr


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DDPTOP_HOME", str(tmp_path / "home"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The attempts for which a guardian was started."""
    attempts: list[int] = []
    monkeypatch.setattr(remote, "start_guardian", lambda *_, attempt: attempts.append(attempt))
    return attempts


def spec_of(cwd: Path, job: str = "train", *, force: bool = False, **fields: Any) -> JobSpec:
    """The spec of a part of a job on several nodes."""
    membership = Membership(job=job, orphan_timeout_s=60.0, force=force)
    spec = make_spec(job=job, job_id=f"{job}@1.1", membership=membership, cwd=str(cwd))
    return msgspec.structs.replace(spec, **fields)


def start(spec: JobSpec) -> None:
    remote.start(pt.Start(spec=spec, env={}, attempt=3, rendezvous=MET))


def put_snapshot(spec: JobSpec, **fields: Any) -> None:
    folder = remote.member_folder(spec.job_id)
    folder.nodes_dir.mkdir(parents=True, exist_ok=True)
    last = msgspec.json.encode(make_snapshot(spec, **fields))
    folder.node_file(procs.host_name()).write_bytes(last)


@pytest.mark.parametrize("state", ["running", "finished"])
def test_a_part_that_has_ended_makes_room_although_its_guardian_has_not_exited(
    monkeypatch, tmp_path, started, state
):
    spec = spec_of(tmp_path)
    put_snapshot(spec, state=state)
    monkeypatch.setattr(remote, "is_locked", lambda _: True)
    monkeypatch.setattr(remote, "SUPERVISOR_S", 0.1)
    if state == "running":
        with pytest.raises(ControlError, match="already running"):
            start(spec)
    else:
        start(spec)
    assert started == ([] if state == "running" else [3])


def test_a_part_that_has_just_ended_is_started_once_its_last_snapshot_is_written(
    monkeypatch, tmp_path, started
):
    """The head receives the event of its end before that, and may ask at once."""
    spec = spec_of(tmp_path)
    put_snapshot(spec, state="running")
    looks: list[int] = []

    def is_locked(_: RunFolder) -> bool:
        looks.append(0)
        if len(looks) == 3:
            put_snapshot(spec, state="stopped")
        return True

    monkeypatch.setattr(remote, "is_locked", is_locked)
    start(spec)
    assert started == [3]


@pytest.mark.parametrize(
    ("gpu", "force", "is_part", "starts"),
    [
        (1, False, False, False),
        (1, False, True, False),
        (1, True, True, True),
        (0, False, True, True),
    ],
)
def test_a_part_does_not_take_the_devices_of_another_job(
    tmp_path, started, gpu, force, is_part, starts
):
    new = {"host": procs.host_name(), "created_at": utc_now()}
    other = spec_of(tmp_path, "other", devices=[Device(index=1)], **new)
    folder = remote.member_folder(other.job_id) if is_part else run_folder("other")
    folder.path.mkdir(parents=True)
    write_spec(folder, other)
    spec = spec_of(tmp_path, force=force, devices=[Device(index=gpu)], **new)
    if starts:
        start(spec)
    else:
        with pytest.raises(ControlError, match="GPU 1 is reserved by job other"):
            start(spec)
    assert started == [3] * starts
    assert remote.member_folder(spec.job_id).path.exists() == starts


@pytest.mark.parametrize(
    ("later_s", "ends", "starts"),
    [(1.0, True, True), (1.0, False, False), (-1.0, True, False)],
    ids=["later, gives up", "later, stays", "earlier"],
)
def test_a_part_waits_for_a_later_launch_to_give_up_its_devices(
    monkeypatch, tmp_path, started, later_s, ends, starts
):
    """If two launches each got one of two machines, exactly one continues."""
    monkeypatch.setattr(remote, "YIELD_S", 5.0 if ends else 0.1)
    now, same = utc_now(), {"host": procs.host_name(), "devices": [Device(index=0)]}
    other, mine = (
        spec_of(tmp_path, name, created_at=now - dt.timedelta(seconds=ago_s), **same)
        for name, ago_s in (("other", 5.0 - later_s), ("train", 5.0))
    )
    theirs = remote.member_folder(other.job_id)
    theirs.path.mkdir(parents=True)
    write_spec(theirs, other)

    def will_yield(*seen: Any) -> bool:
        if ends:
            put_snapshot(other, state="failed")
        return yields(*seen)

    yields = usage.will_yield
    monkeypatch.setattr(usage, "will_yield", will_yield)
    if starts:
        start(mine)
    else:
        with pytest.raises(ControlError, match="GPU 0 is reserved by job other"):
            start(mine)
    assert started == [3] * starts


def part(job_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunFolder:
    """The folder of an ended part, with sockets and history elsewhere."""
    monkeypatch.setattr(paths, "LOCAL_DISK", tmp_path)
    folder = remote.member_folder(job_id)
    folder.path.mkdir(parents=True)
    folder.supervisor_log.write_text("what it said")
    write_spec(folder, make_spec(job_id=job_id))
    (create_local_dir(folder) / "history.db").write_text("what happened")
    return folder


OLD, LATELY = remote.KEPT_S + 60, 60.0


@pytest.mark.parametrize(
    ("started_s", "written_s", "locked", "is_new", "stays"),
    [
        (OLD, OLD, False, False, False),
        (OLD, LATELY, False, False, True),
        (LATELY, OLD, False, False, True),
        (OLD, OLD, True, False, True),
        (OLD, OLD, False, True, True),
    ],
    ids=["old", "it wrote lately", "started lately", "it runs", "it is being started"],
)
def test_what_an_old_part_left_is_deleted_wherever_it_is(
    monkeypatch, tmp_path, started_s, written_s, locked, is_new, stays
):
    folder = part("old@1.0", monkeypatch, tmp_path)
    local, now_s = folder.live_dir, time.time()
    assert local != folder.path
    os.utime(folder.spec_file, (now_s - started_s, now_s - started_s))
    os.utime(folder.supervisor_log, (now_s - written_s, now_s - written_s))
    held = lock(folder.guardian_lock) if locked else None
    remote._prune(folder if is_new else remote.member_folder("new@1.0"))
    assert (folder.path.exists(), local.exists()) == (stays, stays)
    if held is not None:
        os.close(held)


def test_a_part_that_runs_or_is_not_ones_own_is_not_forgotten(monkeypatch, tmp_path):
    folder = part("train@1.0", monkeypatch, tmp_path)
    held = lock(folder.guardian_lock)
    assert held is not None
    with pytest.raises(ControlError, match="still running"):
        remote.forget("train@1.0")
    os.close(held)
    with monkeypatch.context() as as_another:
        as_another.setattr(os, "geteuid", lambda: 4711)
        with pytest.raises(ControlError, match="not deleting"):
            remote.forget("train@1.0")
    local = folder.live_dir
    remote.forget("train@1.0")
    assert not folder.path.exists() and not local.exists()
    remote.forget("train@1.0")


async def test_a_link_ends_once_a_head_that_follows_is_silent_for_several_pings(monkeypatch):
    assert 4 * PING_S <= remote.HEAD_SILENT_S <= 30.0  # --orphan-timeout counts from then on
    monkeypatch.setattr(remote, "HEAD_SILENT_S", 0.01)
    reader: Any = asyncio.StreamReader()
    follower: Any = SimpleNamespace(is_following=True)
    assert await remote._line(reader, follower) == b""
    preflight: Any = SimpleNamespace(is_following=False)  # its head may check hosts for a while
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(remote._line(reader, preflight), 0.05)


async def test_a_part_whose_ranks_live_is_not_absent_while_it_gets_another_guardian(monkeypatch):
    """On a busy machine, a guardian takes longer to start than a part may be missing."""
    monkeypatch.setattr(remote, "ABSENT_AFTER_S", 0.0)
    monkeypatch.setattr(remote, "RECONNECT_S", 0.01)
    monkeypatch.setattr(remote, "GUARD_EVERY_S", 100.0)
    spec = make_spec(job_id="train@1.1")
    folder = remote.member_folder(spec.job_id)
    folder.path.mkdir(parents=True)
    write_spec(folder, spec)
    gone = subprocess.Popen(["true"])
    was = procs.identify(gone.pid)
    gone.wait()
    rank = subprocess.Popen(["sleep", "100"], env={**os.environ, "DDPTOP_JOB_ID": spec.job_id})
    said: list[bytes] = []
    looks = asyncio.Semaphore(0)
    looked = remote.is_locked

    def is_locked(folder: RunFolder) -> bool:
        looks.release()
        return looked(folder)

    try:
        put_snapshot(spec, guardian=was, supervisor=None, agent=None)
        monkeypatch.setattr(remote, "is_locked", is_locked)
        link = remote.Remote(said.append)
        link.take(pt.Follow(job_id=spec.job_id))
        for _ in range(5):
            await asyncio.wait_for(looks.acquire(), 10)
        assert said == []
    finally:
        rank.kill()
        rank.wait()
    while not said:
        await asyncio.wait_for(looks.acquire(), 10)
    assert pt.decode(said[0], pt.Report) == pt.NodeFact(fact=pt.LinkMade(is_there=False))


async def test_a_history_that_cannot_be_read_ends_the_link_with_a_reason():
    folder = remote.member_folder("train@1.1")
    folder.path.mkdir(parents=True)
    folder.history_db.write_bytes(b"no database" * 1000)
    why: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    remote.Remote(lambda _: None, end=why.set_result).take(pt.Follow(job_id="train@1.1"))
    assert "file is not a database" in await asyncio.wait_for(why, 10)


def test_a_part_is_not_started_without_its_directory_or_in_a_foreign_folder(monkeypatch, tmp_path):
    spec = spec_of(tmp_path / "nowhere")
    with pytest.raises(ControlError, match="nowhere does not exist on this host"):
        start(spec)
    assert not remote.member_folder(spec.job_id).path.exists()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ControlError, match="refusing to start"):
        remote._make_folders(remote.member_folder(spec.job_id))
