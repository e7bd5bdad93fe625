"""The queues of several users: their order, and what hostile or stale files change."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.support.builders import gone, put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.host import procs
from ddptop_runner.launch.gpus import shared
from ddptop_runner.launch.gpus.shared import Entry, UserQueue, turns
from ddptop_runner.launch.gpus.usage import claims, jobs_here
from ddptop_runner.launch.gpus.waiting import queue_of_user, why_waiting
from ddptop_runner.model.spec import Device, Waiting, read_spec

NOW = utc_now()
ME = procs.identify(os.getpid())
UID = os.geteuid()


@pytest.fixture
def folder(tmp_path: Path, ddptop_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared directory, once published to."""
    place = tmp_path / "queue"
    monkeypatch.setenv("DDPTOP_QUEUE_DIR", str(place))
    shared.publish(UserQueue())
    return place


def entry(name: str, age_s: float = 60.0, **fields: object) -> Entry:
    given = {"count": 1, "devices": ["GPU-0"], "processes": [ME]} | fields
    since = NOW - dt.timedelta(seconds=age_s)
    return Entry(job=name, job_id=f"{name}@1", since=since, **given)


def put(folder: Path, data: bytes, uid: int = UID, number: int = 0) -> Path:
    file = folder / f"{uid}-{number:08x}.json"
    file.write_bytes(data)
    return file


def encoded(**fields: object) -> bytes:
    return msgspec.json.encode(UserQueue(**fields))


# --- the order ---------------------------------------------------------------------------------


def order(*queues: UserQueue) -> str:
    return " ".join(one.job for _, one in turns(queues))


def test_users_take_turns():
    a = UserQueue(uid=1, waits=[entry("a1", 90), entry("a2", 89), entry("a3", 88)])
    b = UserQueue(uid=2, waits=[entry("b1", 50)])
    c = UserQueue(uid=3, waits=[entry("c1", 70), entry("c2", 10)])
    assert order(a, b, c) == "a1 c1 b1 a2 c2 a3"
    assert order(msgspec.structs.replace(a, turn_at=NOW), b, c) == "c1 b1 a1 c2 a2 a3"
    assert order(UserQueue(uid=1, turn_at=NOW), a, b, c) == "c1 b1 a1 c2 a2 a3"  # another folder
    d = UserQueue(uid=1, waits=[entry("d1", 95), entry("d2", 1)])
    assert order(a, d) == order(d, a) == "d1 a1 a2 a3 d2"


class Simulation:
    """Jobs of users on a machine of some devices, each started by the documented order alone."""

    def __init__(self, devices: int, jobs: list[tuple[int, str, int, int]]) -> None:
        self.waits = {uid: [one for one in jobs if one[0] == uid] for uid, *_ in jobs}
        self.turn = dict.fromkeys(self.waits, 0)
        self.free, self.running = devices, list[tuple[int, str, int]]()
        self.started: list[str] = []
        self.now = 0

    def queues(self) -> list[UserQueue]:
        began = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
        return [
            UserQueue(
                uid=uid,
                turn_at=began + dt.timedelta(self.turn[uid]) if self.turn[uid] else None,
                waits=[entry(name, 100 - at, count=count) for at, (_, name, count, _) in listed],
            )
            for uid, jobs in self.waits.items()
            if (listed := list(enumerate(jobs)))
        ]

    def run(self) -> list[str]:
        while any(self.waits.values()):
            self.now += 1
            ended = [one for one in self.running if one[0] <= self.now]
            self.running = [one for one in self.running if one not in ended]
            self.free += sum(count for _, _, count in ended)
            while (order := turns(self.queues())) and order[0][1].count <= self.free:
                uid, first = order[0]
                job = next(one for one in self.waits[uid] if one[1] == first.job)
                self.waits[uid].remove(job)
                self.turn[uid] = len(self.started) + 1
                self.free -= job[2]
                self.running.append((self.now + job[3], job[1], job[2]))
                self.started.append(job[1])
        return self.started


@pytest.mark.parametrize("seed", range(10))
def test_nobody_starves(seed):
    chance = random.Random(seed)
    jobs = [
        (number % 2, f"j{number}", chance.choice([1, 1, 2, 4]), chance.randint(1, 9))
        for number in range(20)
    ]
    started = Simulation(4, jobs).run()
    assert sorted(started) == sorted(name for _, name, *_ in jobs)
    by_user = [int(name[1:]) % 2 for name in started]
    assert by_user == [0, 1] * 10  # each user's next job after one of the other
    for uid in (0, 1):
        own = [int(name[1:]) for name in started if int(name[1:]) % 2 == uid]
        assert own == sorted(own)


def test_a_job_waits_behind_another_users(ddptop_home):
    here = {"boot_id": procs.boot_id(), "pid_ns": procs.pid_namespace(), "guardian": ME}
    queue = Waiting(candidates=[Device(index=0, uuid="GPU-0")], count=1, since=NOW)
    mine = read_spec(put_job("mine", {**here, "state": "queued"}, queue=queue))
    theirs = UserQueue(uid=12345, waits=[entry("theirs")])
    reason = why_waiting(mine, jobs_here(), NOW, [theirs])
    assert [(one.job, one.user) for one in reason.jobs] == [("theirs", "12345")]
    theirs = msgspec.structs.replace(theirs, turn_at=NOW)
    assert why_waiting(mine, jobs_here(), NOW, [theirs]) is None
    published = queue_of_user(jobs_here(), NOW)
    assert [(one.job, one.count, one.processes) for one in published.waits] == [("mine", 1, [ME])]


@pytest.mark.parametrize(("host", "turn_at"), [(procs.host_name(), NOW), ("elsewhere", None)])
def test_a_turn_on_another_machine_is_none_here(ddptop_home, host, turn_at):
    queue = Waiting(candidates=[], count=0, since=NOW, over_at=NOW)
    put_job("mine", {"state": "finished"}, queue=queue, host=host)
    assert queue_of_user(jobs_here(), NOW).turn_at == turn_at


# --- what others write -------------------------------------------------------------------------


def test_a_device_that_another_user_has_is_busy(folder):
    put(folder, encoded(has=[entry("train", count=0)]))
    assert claims() == [(f"{procs.user_name(UID)}'s job train", "GPU-0")]


GOOD = encoded(waits=[entry("good")])
FUTURE = NOW + dt.timedelta(days=1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"waits": 7}',
        b'{"waits": [{"job": "a"}]}',
        b"[" * 100_000,
        b" " * (shared.FILE_BYTES + 1) + GOOD,
        GOOD.replace(b'"good"', b'"a\\u001b[2J"'),
        GOOD.replace(b"GPU-0", b"x" * 101),
        GOOD.replace(b'"count":1', b'"count":1e99'),
        encoded(waits=[entry("a", age_s=-3600)]),
        encoded(waits=[entry("a", processes=[])]),
        encoded(waits=[entry("a", age_s=1, processes=[])]),
        encoded(waits=[entry("a", processes=[gone()])]),
        encoded(waits=[entry("a", processes=[msgspec.structs.replace(ME, boot_id="other")])]),
        encoded(waits=[entry("a")] * (shared.MOST_JOBS + 1)),
    ],
    ids=range(16),
)
def test_what_cannot_be_true_is_ignored(folder, data):
    put(folder, data)
    put(folder, GOOD, number=1)
    found = shared.others(NOW)
    assert [one.job for queue in found for one in queue.waits] == ["good"]


def test_only_a_process_of_the_user_proves_a_job(folder, monkeypatch):
    put(folder, GOOD)
    monkeypatch.setattr(procs, "uid_of", lambda pid: UID + 1)
    assert [queue.waits for queue in shared.others(NOW)] == [[]]


@pytest.mark.parametrize(("age_s", "counts"), [(1, True), (shared.START_S + 1, False)])
def test_a_job_has_its_devices_before_its_processes_are_known(folder, age_s, counts):
    put(folder, encoded(has=[entry("new", age_s, count=0, processes=[])]))
    assert [bool(queue.has) for queue in shared.others(NOW)] == [counts]


def test_a_turn_in_the_future_is_the_last(folder):
    put(folder, encoded(turn_at=FUTURE))
    assert [queue.turn_at for queue in shared.others(NOW)] == [NOW]


def test_what_is_no_file_of_its_owner_is_ignored(folder, tmp_path):
    target = put(tmp_path, GOOD, number=7)
    (folder / f"{UID}-00000001.json").symlink_to(target)
    os.mkfifo(folder / f"{UID}-00000002.json")
    (folder / f"{UID}-00000003.json").mkdir()
    put(folder, GOOD, uid=UID + 1)
    assert [queue for queue in shared.others(NOW) if queue.waits] == []


@pytest.mark.parametrize(
    ("files", "size", "read"),
    [(5, shared.FILE_BYTES // 2, 2), (shared.MOST_FILES + 5, 0, shared.MOST_FILES)],
)
def test_all_files_of_a_user_together_are_bounded(folder, files, size, read):
    for number in range(files):
        put(folder, GOOD.ljust(size), number=number)
    assert len(shared.others(NOW)) == read


def test_many_files_of_others_hide_nobody(folder):
    for number in range(2000):
        (folder / f"{UID + 1}-{number:08x}.json").touch()
        (folder / f"junk{number}").touch()
    put(folder, GOOD)
    assert Counter(one.job for q in shared.others(NOW) for one in q.waits) == {"good": 1}


def test_a_file_in_anothers_name_is_examined_once(folder, monkeypatch):
    stats = []

    def stat(*, follow_symlinks: bool) -> os.stat_result:
        stats.append(follow_symlinks)
        return folder.stat()

    theirs = SimpleNamespace(name=f"{UID + 1}-00000001.json", inode=lambda: 7, stat=stat)
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", lambda _: contextlib.nullcontext([theirs]))
        assert [shared.others(NOW) for _ in range(3)] == [[], [], []]
    assert stats == [False]
    assert shared.others(NOW) == []  # it is gone, and another file may have its place
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", lambda _: contextlib.nullcontext([theirs]))
        shared.others(NOW)
    assert stats == [False, False]


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o1777])
def test_only_a_sticky_directory_is_used(tmp_path, ddptop_home, monkeypatch, mode):
    place = tmp_path / "queue"
    place.mkdir()
    place.chmod(mode)
    monkeypatch.setenv("DDPTOP_QUEUE_DIR", str(place))
    shared.publish(UserQueue())
    assert bool(list(place.iterdir())) is (mode == 0o1777)
    problem = shared.problem()
    assert problem is None if mode == 0o1777 else "must be 1777" in problem


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path, ddptop_home, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "real").chmod(0o1777)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        monkeypatch.setenv("DDPTOP_QUEUE_DIR", str(tmp_path / name))
        shared.publish(UserQueue())
        assert "other users' jobs are not considered" in shared.problem()
        with shared.locked(0) as had:
            assert had
    assert list((tmp_path / "real").iterdir()) == []


def test_who_holds_the_lock_forever_blocks_nobody_for_long(folder, monkeypatch):
    with shared.locked(0) as had:
        assert had
    now_s = [0.0]
    monkeypatch.setattr(shared.time, "monotonic", lambda: now_s[0])

    def had_while_held(*times_s: float) -> list[float]:
        """When the lock counts as acquired, of these times."""
        found = []
        with subprocess.Popen(["flock", folder / "lock", "cat"], stdin=subprocess.PIPE) as holder:
            free = ["flock", "-n", folder / "lock", "true"]
            while subprocess.run(free, check=False).returncode == 0:
                pass
            for now_s[0] in times_s:
                with shared.locked(0) as had:
                    found += [now_s[0]] * had
            holder.communicate()
        return found

    # at 0: another holder
    assert had_while_held(0.0, 3600.0, *range(3603, 3634, 3), 3636.0) == [3633, 3636]
    with shared.locked(0) as had:
        assert had
    assert had_while_held(3639.0) == [], "it was free meanwhile"


def test_a_published_file_is_readable_by_all_and_written_once(folder):
    (file,) = folder.glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o644
    before = file.stat().st_ino
    shared.publish(UserQueue())
    assert file.stat().st_ino == before
    shared.publish(UserQueue(waits=[entry("a")]))
    assert json.loads(file.read_bytes())["waits"][0]["job"] == "a"
