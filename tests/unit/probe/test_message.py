"""Datagrams: what the sender writes, the supervisor reads."""

import json
import os
import signal
import socket
import time
from types import SimpleNamespace

import pytest

from ddptop_runner.model.probe_message import MAX_BYTES, ProbeMessage, decode_message
from ddptop_runner.probe import evidence, identity, sender
from ddptop_runner.probe.recorder import Recorder


class Optimizer:
    pass


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith(("DDPTOP_", "OMPI_", "HOROVOD_", "PMI_", "SLURM_")) or "RANK" in name:
            monkeypatch.delenv(name)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(identity, "_place", (None,) * 4)
    monkeypatch.setenv("DDPTOP_JOB_ID", "cats@1f2e")
    monkeypatch.setenv("DDPTOP_ATTEMPT", "1")
    return monkeypatch


def test_every_field_is_sent_and_known(env):
    message = sender.Sender(Recorder()).message()
    assert set(message) == set(ProbeMessage.__struct_fields__)


def test_nan_is_a_state_next_to_null(env):
    record, optimizer = Recorder(), Optimizer()
    for loss in (1.0, float("nan")):
        record.passed(loss)
        record.stepped(optimizer)
    for _ in range(3):
        record.metric("lr", 0.5)
    record.metric("norm", float("inf"))
    data = sender.encode(sender.Sender(record).message(record.take_loss_range()))
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    message = decode_message(data)
    assert message is not None
    assert (message.loss, message.loss_state, message.loss_step) == (None, "nan", 2)
    assert message.metrics == {"lr": 0.5, "norm": None}
    assert message.metric_reports == {"lr": 3, "norm": 1}


def test_mean_times_are_over_the_steps_since_the_last_message(env):
    record = Recorder()
    speaker = sender.Sender(record)
    assert speaker.message()["step_time_s"] is None
    record.first_progress = record.progress = (1, 10.0, 1.0)
    assert speaker.message()["step_time_s"] is None
    record.progress, record.data_wait_s = (5, 18.0, 3.0), 7.0
    first = speaker.message()
    assert (first["step_time_s"], first["data_wait_s"]) == (2.0, 0.5)
    again = speaker.message()
    assert (again["step_time_s"], again["data_wait_s"]) == (2.0, 0.5)
    record.progress = (6, 18.5, 3.0)
    later = speaker.message()
    assert (later["step_time_s"], later["data_wait_s"]) == (0.5, 0.0)


def test_metrics_give_way_to_the_size_limit(env):
    record = Recorder()
    for number in range(200):
        record.metric(f"a_metric_with_a_long_name_{number}", 1 / 3)
    data = sender.encode(sender.Sender(record).message())
    message = decode_message(data)
    assert message is not None and len(data) <= MAX_BYTES
    assert len(message.metrics) > 10 and "a_metric_with_a_long_name_0" in message.metrics
    assert len(record.metrics) == 200


def test_the_longest_of_all_fits_and_what_costs_least_to_miss_is_left_out(env):
    env.setenv("DDPTOP_JOB_ID", "j" * 60 + "@1f2e")
    record = Recorder()
    record.metric("m" * 300, 0.5)
    speaker = sender.Sender(record)
    for length, has_place in ((100, True), (160, False)):
        path = "/" + "\xe9" * length  # six bytes each, in JSON
        record.has_saved(path, 25305.387596417, 25305.987596417, 10**6, 10**12, 10**12, 10**18)
        speaker.flight.collectives = {str(n) * 32: [10**6, 10**6] for n in range(9)}
        speaker.phases.stands_at = "\xe9" * 60
        data = sender.encode(speaker.message())
        message = decode_message(data)
        assert message is not None and len(data) <= MAX_BYTES
        assert message.saved is not None and message.saved.path == path
        assert len(message.collectives) == 9 and message.metrics == {}
        assert (message.stands_at is not None) == has_place


def test_a_step_keeps_its_time_when_the_machine_was_suspended(env):
    record = Recorder()
    record.passed(1.0)
    record.stepped(Optimizer())
    speaker = sender.Sender(record)
    before = speaker.message()
    clock = time.clock_gettime
    env.setattr(time, "clock_gettime", lambda which: clock(which) + 7200)
    after = speaker.message()
    assert after["last_step_t"] == before["last_step_t"]
    assert after["t"] - before["t"] >= 7200


def test_what_could_not_be_sent_is_sent_later(env, tmp_path):
    path = tmp_path / "s"
    env.setenv("DDPTOP_PROBE_SOCK", str(path))
    record, optimizer = Recorder(), Optimizer()
    speaker = sender.Sender(record)
    for loss in (3.0, 1.0):
        record.passed(loss)
        record.stepped(optimizer)
        speaker.tick()
        assert record.dirty
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.setblocking(False)
        speaker.tick()
        message = decode_message(receiver.recv(4096))
        assert message is not None and not record.dirty
        assert (message.steps, message.loss_min, message.loss_max) == (2, 1.0, 3.0)
        speaker.tick()  # no news, and not long ago
        with pytest.raises(BlockingIOError):
            receiver.recv(4096)
        env.setattr(sender, "KEEP_ALIVE_S", 0.0)
        speaker.tick()
        again = decode_message(receiver.recv(4096))
        assert again is not None and again.seq > message.seq
        assert (again.steps, again.last_step_t) == (message.steps, message.last_step_t)
        assert again.loss_min is None


def test_the_last_word_waits_for_room_and_nothing_follows_it(env, tmp_path):
    env.setenv("DDPTOP_PROBE_SOCK", str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "s"))
        speaker, others, heard = sender.Sender(Recorder()), 0, []
        while speaker.send():
            others += 1
        env.setattr(
            sender,
            "time",
            SimpleNamespace(
                monotonic=time.monotonic, sleep=lambda _: heard.append(receiver.recv(4096))
            ),
        )
        speaker.send_last(0.0)
        assert len(heard) == 1
        assert not speaker.send()  # of a look that took longer
        receiver.setblocking(False)
        heard += [receiver.recv(4096) for _ in range(others)]
        messages = [decode_message(data) for data in heard]
        assert [message and message.final for message in messages] == [False] * others + [True]
        with pytest.raises(BlockingIOError):
            receiver.recv(4096)


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[1]",
        b"{}",
        b'{"v":1}',
        b'{"v":1,"pid":"x","seq":1,"t":1.0}',
        b'{"v":2,"pid":1,"seq":1,"t":1.0}',
        b'{"v":1,"pid":1,"seq":1,"t":NaN}',
        b'{"v":1,"pid":1,"seq":1,"t":1.0,"loss_state":"bad"}',
        b'{"v":1,"pid":1,"seq":1,"t":1.0',
        b'{"v":1,"pid":1,"seq":1,"t":1.0,"metrics":{"a":"b"}}',
        b'{"v":1,"pid":1,"seq":1,"t":1.0,"job":"\xff"}',
    ],
)
def test_garbage_is_nothing(datagram):
    assert decode_message(datagram) is None


class Group:
    """torch.distributed, initialized."""

    @staticmethod
    def is_available() -> bool:
        return True

    is_initialized = is_available

    @staticmethod
    def get_rank() -> int:
        return 6

    @staticmethod
    def get_world_size() -> int:
        return 8


@pytest.fixture
def group(env: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    env.setitem(identity.sys.modules, "torch.distributed", Group)  # type: ignore[arg-type]
    return env


def test_the_rank_is_remembered_when_the_group_is_destroyed(group):
    assert (identity.rank(), identity.world_size()) == (6, 8)
    group.setattr(Group, "is_initialized", lambda: False)
    assert (identity.rank(), identity.world_size()) == (6, 8)


def test_the_rank_is_the_environments_in_a_rank(group):
    group.setenv("RANK", "2")
    group.setenv("WORLD_SIZE", "4")
    assert identity.claim_rank() and identity.claim_rank()
    assert (identity.rank(), identity.world_size()) == (2, 4)


def test_a_ranks_child_is_no_rank_until_it_joins_a_group(env):
    env.setenv("RANK", "2")
    env.setenv(identity.OWNER, f"{os.getppid()}:cats@1f2e")
    assert not identity.claim_rank() and identity.rank() == 2
    env.setitem(identity.sys.modules, "torch.distributed", Group)  # type: ignore[arg-type]
    assert (identity.rank(), identity.world_size()) == (6, 8)


@pytest.mark.parametrize(
    "names",
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE"),
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    ],
)
def test_other_launchers_ranks_are_known(env, names):
    for name, value in zip(names, ("5", "1", "16"), strict=True):
        env.setenv(name, value)
    env.setenv("SLURM_STEP_ID", "0")
    assert identity.claim_rank() and os.environ[identity.OWNER].endswith(":cats@1f2e")
    assert (identity.rank(), identity.local_rank(), identity.world_size()) == (5, 1, 16)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "/venv/bin/torchrun", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["python", "-u", "-m", "accelerate.commands.launch", "train.py"],
        ["python", "/venv/bin/accelerate", "launch", "train.py"],
    ],
)
def test_a_launcher_is_no_rank_of_the_task_that_it_is(env, argv):
    env.setenv("OMPI_COMM_WORLD_RANK", "0")
    env.setattr(identity.sys, "orig_argv", argv, raising=False)  # type: ignore[attr-defined]
    env.setattr(identity.sys, "argv", ["-m"])  # type: ignore[attr-defined]
    assert not identity.claim_rank()


@pytest.mark.parametrize("node_rank", ["0", "1"])
def test_lightnings_further_ranks_are_known(env, node_rank):
    for name, value in {"NODE_RANK": node_rank, "LOCAL_RANK": "1", "WORLD_SIZE": "4"}.items():
        env.setenv(name, value)
    assert identity.rank() == (1 if node_rank == "0" else None)
    assert (identity.local_rank(), identity.world_size()) == (1, 4)


class Horovod:
    """horovod.torch, initialized."""

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def rank() -> int:
        return 2

    @staticmethod
    def size() -> int:
        return 3

    @staticmethod
    def local_rank() -> int:
        return 0


def test_horovods_own_rank_is_known_without_variables(env):
    env.setitem(identity.sys.modules, "horovod.torch", Horovod)  # type: ignore[attr-defined]
    assert identity.has_joined()
    assert (identity.rank(), identity.local_rank(), identity.world_size()) == (2, 0, 3)
    env.setattr(Horovod, "is_initialized", lambda: False)
    assert identity.rank() == 2


def test_the_stack_signal_is_withdrawn_when_the_script_takes_it(env):
    speaker = sender.Sender(Recorder())
    number = evidence.STACK_SIGNAL
    speaker._signal = number
    assert speaker.message()["stack_signal"] == number
    before = signal.signal(number, lambda *_: None)
    try:
        assert speaker.message()["stack_signal"] is None
        assert evidence.register_stacks("/nonexistent", 0, 0) is None
    finally:
        signal.signal(number, before)
