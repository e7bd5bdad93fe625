"""Process groups and the flight record: the decisions, and two real ranks that wait."""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.probe.evidence import Flight, Groups

SCRIPTS = Path(__file__).parent / "scripts"


class World:
    """torch.distributed's table, as far as the probe looks at it."""

    def __init__(self) -> None:
        self.default_pg: object = None
        self.pg_names: dict[object, str] = {}
        self.pg_backend_config: dict[object, str] = {}

    def make(self, name: str, config: str = "cpu:gloo,cuda:gloo") -> object:
        group = object()
        self.default_pg = self.default_pg or group
        self.pg_names[group], self.pg_backend_config[group] = name, config
        return group

    def destroy(self, group: object) -> None:
        del self.pg_names[group], self.pg_backend_config[group]


def name(world: World, groups: Groups, **statuses: dict[int, tuple[int, int]]) -> Any:
    groups.update(world)
    return groups.name(statuses)


def test_groups_have_the_names_that_all_ranks_know_them_by():
    world, groups = World(), Groups()
    for group_name in ("0", "2", "5"):  # 1, 3 and 4 are those of other ranks
        world.make(group_name)
    found = name(world, groups, gloo={0: (9, 8), 2: (3, 3)})
    assert found == {"0": [9, 8], "5": [3, 3]}


def test_a_group_of_two_backends_is_one():
    world, groups = World(), Groups()
    world.make("0", "cpu:gloo,cuda:nccl")
    world.make("1", "cuda:nccl")
    world.make("2", "cpu:gloo")
    assert groups.backends == []
    found = name(world, groups, gloo={0: (2, 2), 1: (1, 0)}, nccl={0: (7, 6), 1: (4, 4)})
    assert found == {"0": [9, 8], "2": [1, 0], "1": [4, 4]}
    assert groups.backends == ["gloo", "nccl"]


def test_a_destroyed_group_waits_for_nothing_and_its_count_stays():
    world, groups = World(), Groups()
    first = world.make("0")
    assert name(world, groups, gloo={0: (9, 8)}) == {"0": [9, 8]}
    world.destroy(first)
    assert name(world, groups, gloo={0: (9, 8)}) == {"0": [8, 8]}
    world.make("0")  # the default group is called so again
    assert name(world, groups, gloo={0: (9, 8), 1: (2, 1)}) == {"0": [10, 9]}


def test_numbers_that_no_group_is_known_for_are_the_ranks_own(monkeypatch):
    world, groups = World(), Groups()
    world.make("0")
    assert name(world, groups, gloo={0: (1, 1), 1: (2, 2)}) == {"#0": [1, 1], "#1": [2, 2]}
    assert name(world, groups, gloo={0: (1, 1)}) == {"0": [1, 1]}
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")  # helpers take numbers as well
    assert name(world, groups, gloo={0: (1, 1)}) == {"#0": [1, 1]}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.ModuleType:
    """Stand-ins of torch's modules; `status` and `calls` are the test's."""
    module = types.ModuleType("torch._C._distributed_c10d")
    module.status, module.calls = (5, 4), []  # type: ignore[attr-defined]

    def dump(includeCollectives: bool = True) -> bytes:
        module.calls.append(includeCollectives)
        entered, done = map(str, module.status)
        status = {"last_enqueued_collective": entered, "last_completed_collective": done}
        return json.dumps({"pg_status": {"0": status}, "entries": []}).encode()

    module._dump_fr_trace_json = dump  # type: ignore[attr-defined]
    distributed = types.ModuleType("torch.distributed.distributed_c10d")
    distributed._world = World()  # type: ignore[attr-defined]
    for entry in (module, distributed):
        monkeypatch.setitem(sys.modules, entry.__name__, entry)
    monkeypatch.setenv("DDPTOP_STACKS_DIR", str(tmp_path / "stacks"))
    monkeypatch.setenv("DDPTOP_ATTEMPT", "2")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("DDPTOP_PROBE_OWNER", f"{os.getpid()}:x")
    return module


def world() -> World:
    return sys.modules["torch.distributed.distributed_c10d"]._world  # type: ignore[attr-defined,no-any-return]


def test_nothing_is_asked_before_there_is_a_group(recorder):
    looked = Flight()
    assert not looked.look() and looked.collectives == {} and recorder.calls == []
    world().make("0")
    assert looked.look() and looked.collectives == {"0": [5, 4]}
    assert not looked.look()
    recorder.status = ("6", "-1")
    assert looked.look() and looked.collectives == {"0": [6, 0]}
    assert set(recorder.calls) == {False}


def test_a_process_forked_with_groups_never_asks(recorder):
    world().make("0")
    assert not Flight().look() and recorder.calls == []


def test_the_record_is_written_once_where_it_is_asked_for(recorder, tmp_path):
    looked, asked = Flight(), tmp_path / "stacks" / "attempt-2-records-asked"
    record = tmp_path / "stacks" / "attempt-2-rank-3-flight.json"
    looked.write_if_requested()
    world().make("0")
    looked.look()
    recorder.status = (5, 5)  # it waits for nothing
    looked.write_if_requested()
    assert not record.exists()
    asked.parent.mkdir()
    asked.touch()
    looked.write_if_requested()
    assert json.loads(record.read_bytes())["entries"] == []
    assert record.stat().st_mode & 0o777 == 0o600
    assert {*record.parent.iterdir()} == {asked, record}
    looked.write_if_requested()
    assert recorder.calls.count(True) == 1


# --- real ranks ------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.gloo_records
def test_ranks_tell_how_far_their_groups_are(rank, wait_until, monkeypatch):
    rank.env["TORCH_FR_BUFFER_SIZE"] = "2000"  # as the agent does; torch 2.8 has no default
    argv = (str(SCRIPTS / "waiting.py"), str(rank.folder / "go"), str(rank.folder / "store"))
    processes = [
        rank.start(*argv, RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
        for number in (0, 1)
    ]

    def heard(number: int, is_there: Callable[[ProbeMessage], bool]) -> ProbeMessage:
        def found() -> ProbeMessage | None:
            own = [m for m in rank.receiver.messages if m.rank == number and m.world_size == 2]
            return next(filter(is_there, own), None)

        message = wait_until(found, 120, f"rank {number}")
        assert isinstance(message, ProbeMessage)
        return message

    waiting = heard(0, lambda m: m.phase == "collective")
    assert waiting.stands_at is not None
    assert waiting.stands_at.startswith("waiting.py:") and "in gather" in waiting.stands_at
    # torch notes the end of a collective by a thread of its own, or only with a later one
    entered, done = waiting.collectives["0"]
    before = entered - 1
    assert before - 2 <= done <= before
    late = heard(
        1,
        lambda m: (
            m.phase == "steps"
            and (m.collectives.get("0", [0])[0], m.collectives.get("2", [0])[0]) == (before, 2)
        ),
    )
    assert before - 2 <= late.collectives["0"][1] <= before
    # each rank has one group more, of another name
    assert waiting.collectives["1"][0] == 1 and late.collectives["2"][0] == 2
    assert set(waiting.collectives) == {"0", "1"} and set(late.collectives) == {"0", "2"}
    record = rank.folder / "stacks" / "attempt-2-rank-0-flight.json"
    record.parent.mkdir(exist_ok=True)
    record.with_name("attempt-2-records-asked").touch()
    wait_until(record.exists, 120)
    entries = json.loads(record.read_bytes())["entries"]
    assert "all_reduce" in entries[-1]["profiling_name"] and entries[-1]["state"] != "completed"
    (rank.folder / "go").touch()
    errors = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    last = heard(0, lambda m: m.final)
    assert last.phase == "steps" and last.steps == 4


def test_a_folder_that_cannot_be_written_is_no_matter(recorder, monkeypatch):
    monkeypatch.setenv("DDPTOP_STACKS_DIR", "/proc/nowhere")
    looked = Flight()
    world().make("0")
    looked.look()
    looked.write()
    assert recorder.calls.count(True) == 1
