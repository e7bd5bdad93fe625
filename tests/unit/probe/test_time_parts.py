"""What a step's time is made of: as DDP and collectives over gloo tell it."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.probe_ranks import Rank, lines

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.probe import identity, time_parts
from ddptop_runner.probe.recorder import Recorder
from ddptop_runner.probe.time_parts import (
    BACKWARD,
    BATCH,
    FORWARD,
    NONE,
    Borders,
    TimeParts,
    split,
)

SCRIPTS = Path(__file__).parent / "scripts"
SLOW_S, DATA_S, SAMPLES = 0.08, 0.02, 24


class Logger:
    """Stands in for torch's logger of one DDP module."""

    def __init__(self) -> None:
        self.figures: dict[str, int] = {}
        self.reads = 0

    def set_runtime_stats_and_log(self) -> None:
        """Like torch's."""

    def _get_ddp_logging_data(self) -> SimpleNamespace:
        self.reads += 1
        return SimpleNamespace(ints_map=dict(self.figures))


class Work:
    def wait(self, seconds: float) -> str:
        time.sleep(seconds)
        return "done"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> TimeParts:
    """Patches classes of this module instead of torch's."""
    monkeypatch.setattr(identity, "world_size", lambda: 4)
    for kind, name in ((Logger, "set_runtime_stats_and_log"), (Work, "wait")):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    nothing = SimpleNamespace(_sync_buffers=lambda: None)
    torch = SimpleNamespace(
        _C=SimpleNamespace(_distributed_c10d=SimpleNamespace(Logger=Logger, Work=Work)),
        nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=nothing)),
    )
    record = Recorder()
    ddp_use = SimpleNamespace(measured=lambda *figures: None)
    found = TimeParts(torch, record, ddp_use, Borders(torch, record))
    found.arm(lambda owner, name, make: setattr(owner, name, make(getattr(owner, name))))
    return found


def forward(parts: TimeParts, logger: Logger, iteration: int, wait_s: float) -> None:
    """One step with DDP, as measured by itself."""
    hidden_ns = 5_000_000
    logger.figures = {
        "iteration": iteration,
        "backward_comm_time": int(wait_s * 1e9) + hidden_ns,
        "backward_compute_comm_overlap_time": hidden_ns,
    }
    logger.set_runtime_stats_and_log()
    parts._record.passed(None)


def waited(parts: TimeParts, steps: int, *, holds_thread: bool) -> float | None:
    return parts.wait_per_step_s(steps, parts._record.progress, holds_thread)


@pytest.mark.parametrize(
    ("step_s", "data_s", "sync_s", "expected"),
    [
        (1.0, 0.25, 0.5, (0.5, 0.25)),
        (1.0, None, 0.5, (0.5, None)),
        (1.0, 0.25, None, (None, None)),
        (None, None, 0.5, (None, None)),
        (1.0, 0.25, 3.0, (0.75, 0.0)),
        (1.0, 1.5, 0.5, (0.0, 0.0)),
    ],
)
def test_a_step_is_split_as_far_as_its_parts_are_known(step_s, data_s, sync_s, expected):
    assert split(step_s, data_s, sync_s) == expected


def test_an_exception_from_a_signal_handler_reaches_the_script(parts, monkeypatch):
    def handler() -> None:
        raise TimeoutError("the script's own")

    monkeypatch.setattr(parts._borders, "mark_input", handler)
    with pytest.raises(TimeoutError):
        Logger().set_runtime_stats_and_log()
    monkeypatch.setattr(parts._borders, "mark_input", None)
    Logger().set_runtime_stats_and_log()


def test_the_wait_is_what_computing_did_not_hide_in_the_usual_of_the_last_three(parts):
    logger = Logger()
    for number, wait_s in enumerate((9.0, 0.25, 0.5, 7.0), 1):
        forward(parts, logger, number, wait_s)
    assert waited(parts, 4, holds_thread=False) == pytest.approx(0.5)
    # later ones are read when they are asked for, and one that was read before is no new one
    for _ in range(time_parts.FIRST_CALLS):
        forward(parts, logger, 4, 7.0)
    reads = logger.reads
    forward(parts, logger, 4, 7.0)
    assert logger.reads == reads
    assert waited(parts, 13, holds_thread=False) == pytest.approx(0.5)
    forward(parts, logger, 100, 0.5)
    assert logger.reads == reads + 1


def test_a_pass_of_the_next_step_is_no_wait_of_this_one(parts):
    logger = Logger()
    forward(parts, logger, 1, 0.5)
    waited(parts, 1, holds_thread=False)
    told = []
    for number in range(2, 40, 2):
        forward(parts, logger, number, 0.5)
        told.append(waited(parts, 2, holds_thread=False))  # the other step's pass is to come
        for later in range(3):
            forward(parts, logger, number + later, 0.5)
        told.append(waited(parts, 2, holds_thread=False))
    assert all(0.3 <= wait_s <= 0.5 for wait_s in told)
    assert told[-1] == pytest.approx(0.5)


def test_collectives_count_that_hold_the_thread_of_training(parts):
    assert Work().wait(0.01) == "done"
    assert parts.waited_s is None, "ranks wait for each other's start"
    parts._record.progress = first = (1, 0.0)
    Work().wait(0.02)
    assert parts.wait_per_step_s(1, first, True) is None, "it waited after that step"
    parts._record.progress = (3, 0.0)
    assert waited(parts, 2, holds_thread=True) >= 0.01
    assert parts._record.until_backward_s <= -0.02, "it is no time of its own"
    assert waited(parts, 1, holds_thread=True) == 0.0
    parts._record.step_thread = -1
    Work().wait(0.01)
    parts._record.progress = (4, 0.0)
    assert waited(parts, 1, holds_thread=True) == 0.0, "it waited in another thread"
    assert waited(parts, 1, holds_thread=False) is None


def test_what_nothing_measured_is_unknown_and_nobody_is_waited_for_alone(parts, monkeypatch):
    assert waited(parts, 1, holds_thread=True) is None
    logger = Logger()
    logger.set_runtime_stats_and_log()
    assert waited(parts, 1, holds_thread=True) is None, "DDP has measured nothing yet"
    parts.begin()
    monkeypatch.setattr(identity, "world_size", lambda: 1)
    assert waited(parts, 1, holds_thread=True) == 0.0


@pytest.fixture(scope="module")
def trained(module_rank: Rank) -> dict[str, list[ProbeMessage]]:
    """The last messages of the fast and the slow rank, with DDP and without."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del module_rank.env[name]
    status, out, err = module_rank.run("-W", "ignore", str(SCRIPTS / "parts.py"))
    assert (status, err) == (0, "")
    return {
        line["how"]: [module_rank.receiver.last(pid) for pid in line["pids"]] for line in lines(out)
    }


@pytest.mark.torch
@pytest.mark.parametrize("how", ["ddp", "plain"])
def test_the_fast_rank_waits_for_the_slow_one(trained, how: str) -> None:
    fast, slow = trained[how]
    assert fast.sync_s is not None and fast.sync_s >= 0.5 * (SLOW_S - DATA_S)
    assert slow.compute_s is not None and slow.compute_s >= 0.7 * SLOW_S
    assert fast.data_wait_s is not None and fast.data_wait_s >= 0.4 * DATA_S
    for message in (fast, slow):
        parts = (message.data_wait_s, message.sync_s, message.compute_s)
        assert sum(part for part in parts if part is not None) == pytest.approx(message.step_time_s)
    assert slow.forward_s is not None and slow.forward_s >= 0.7 * SLOW_S
    if how == "ddp":  # it sleeps between the batch and the forward pass
        assert 0.7 * SLOW_S <= slow.input_s <= slow.forward_s <= slow.input_s + 0.3 * SLOW_S
        assert fast.input_s is not None and fast.input_s <= 0.3 * SLOW_S
    else:
        assert (slow.input_s, fast.input_s) == (None, None)
    assert fast.optimizer_s is not None and fast.optimizer_s <= 0.3 * SLOW_S, "without the wait"
    used = slow.resources
    assert (used.batch_elements_total, used.threads) == (SAMPLES * 4, 1)
    assert used.cpu_total_s > 0 and used.gc_total_s > 0 and used.cpus >= 1


class Stream:
    """Stands in for torch: a device's stream that reaches events when the test says so."""

    def __init__(self) -> None:
        self.cuda, self.now_ms, self.is_idle, self.captures = self, 0.0, False, False

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        event = SimpleNamespace(query=lambda: self.is_idle)

        def record() -> None:
            assert not self.captures, "it would become part of the graph"
            event.at_ms = self.now_ms

        event.record, event.elapsed_time = record, lambda end: end.at_ms - event.at_ms
        return event

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def memory_allocated(self, device: str) -> int:
        """Like torch's, which asks no device."""
        return {"cuda:1": 7 << 20}[device]


def on_device(
    borders: Borders, stream: Stream, steps: int, device: str = "cuda:1", batches: int = 1
) -> None:
    handle = SimpleNamespace(remove=lambda: None)
    optimizer = SimpleNamespace(
        param_groups=[{"params": [SimpleNamespace(is_cuda=True, device=device)]}],
        register_step_pre_hook=lambda hook: handle,
    )

    def mark(after_ms: float, part: int) -> None:
        stream.now_ms += after_ms
        if borders.marks is not None:
            borders.mark(part)

    for step in range(borders._record.steps + 1, borders._record.steps + 1 + steps):
        for batch in range(batches):
            mark(1, BATCH)
            stream.now_ms += 0.5
            if batch == 0:  # no_sync hides the others
                borders.mark_input()
                borders.mark_input()  # of a second model
            mark(1.5, FORWARD)
            mark(4, BACKWARD)
        mark(2, NONE)
        stream.now_ms += 1
        borders._record.progress = (step, 0.0, None)
        if borders.is_due:
            borders.sample(optimizer)


def test_on_a_device_its_own_clock_counts_once_it_has_got_there() -> None:
    stream = Stream()
    borders = Borders(stream, Recorder())
    on_device(borders, stream, 10)
    assert borders.parts_of(0.01) == [None] * 4, "nothing waits for the device"
    stream.is_idle = borders.is_due = True
    on_device(borders, stream, 3)
    assert borders.parts_of(0.01) == pytest.approx([0.0005, 0.002, 0.004, 0.001])
    assert borders.parts_of(0.0035) == pytest.approx([0.00025, 0.001, 0.002, 0.0005])
    stream.captures, borders.is_due = True, True
    on_device(borders, stream, 2 * time_parts.DEVICE_STEPS)
    assert borders.marks is None and len(borders._spent_s) == 1
    assert borders.allocated_bytes == 7 << 20
    borders.is_due = True
    on_device(borders, stream, 2, device="of an allocator that does not count")
    assert borders.allocated_bytes is None


def test_the_input_is_unknown_where_a_forward_pass_is_hidden() -> None:
    stream = Stream()
    stream.is_idle = True
    borders = Borders(stream, Recorder())
    on_device(borders, stream, 3, batches=2)
    borders.is_due = True
    on_device(borders, stream, 1, batches=2)
    assert borders.parts_of(0.1) == pytest.approx([None, 0.004, 0.008, 0.001])
