"""Phases over time: the decisions, and what real trainings are seen to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.probe import phases
from ddptop_runner.probe.phases import WAIT_S, Phases
from ddptop_runner.probe.recorder import Recorder

from .test_standing import EVALUATE, GATHER, LOADER, STORE, TRAIN

SCRIPTS = Path(__file__).parent / "scripts"
SLEEP = (TRAIN,)


class Watched:
    """A training whose stack and counters the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int = 1) -> None:
        self.record = Recorder()
        self.phases = Phases(self.record)
        self.now_t = 100.0
        self.stack: tuple[tuple[str, str], ...] = SLEEP
        self.looks = 0
        self.collectives: dict[str, list[int]] = {}
        monkeypatch.setattr(phases, "frames_of", self._frames)
        monkeypatch.setattr(phases, "boottime_s", lambda now_s: now_s)
        monkeypatch.setattr(Phases, "_thread", lambda phases: 7)
        for _ in range(steps):
            self.step()

    def _frames(self, thread: int) -> list[tuple[str, str, int]]:
        self.looks += 1
        return [(*frame, 41) for frame in self.stack]

    def step(self) -> None:
        self.record.passed(None)
        self.record.stepped(self)
        self.progressed()

    def progressed(self) -> None:
        progress = self.record.progress = (self.record.steps, self.now_t, None)
        if self.record.steps == 1:
            self.record.first_progress = progress

    def batch(self, count: int = 1, *, gradient: bool) -> None:
        self.record.batches = self.record.batches + count
        if not gradient:
            self.record.batch_without_gradient = self.record.batches

    def after(self, seconds: float, *stack: tuple[str, str]) -> str:
        self.now_t += seconds
        self.stack = stack or SLEEP
        self.phases.look(self.now_t, self.collectives)
        return self.phases.phase


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_nothing_is_read_while_steps_continue(watched):
    assert watched.after(0.9, EVALUATE) == "steps"
    assert watched.looks == 0 and watched.phases.stands_at is None
    assert watched.after(0.2, EVALUATE) == "evaluation"
    assert (watched.phases.stands_at, watched.phases.since_t) == (
        "train.py:41 in evaluate",
        watched.now_t,
    )
    watched.step()
    assert watched.after(0.1, EVALUATE) == "steps"
    assert (watched.phases.stands_at, watched.phases.since_t) == (None, watched.now_t - 0.1)


def test_a_slow_step_is_a_step(watched):
    assert {watched.after(1.0) for _ in range(9)} == {"steps"}
    assert (
        watched.phases.since_t == 100.0
        and watched.phases.stands_at == "train.py:41 in " + (TRAIN[1])
    )


def test_data_is_waited_for_at_two_looks_at_the_same_batch(watched):
    watched.batch(gradient=True)
    assert watched.after(1.0, *LOADER, TRAIN) == "steps"
    watched.batch(gradient=True)
    watched.record.passed(1.0)
    assert watched.after(0.25, *LOADER, TRAIN) == "steps"
    assert watched.after(0.25, *LOADER, TRAIN) == "data"
    since_t = watched.phases.since_t
    watched.batch(gradient=True)
    assert watched.after(0.25, *LOADER, TRAIN) == "data" and watched.phases.since_t == since_t
    assert watched.after(0.25) == "steps"


def test_a_collective_is_one_after_a_while(watched):
    watched.collectives = {"0": [5, 4]}
    assert watched.after(1.0, *GATHER, TRAIN) == "steps"
    assert watched.after(WAIT_S - 0.1, *GATHER, TRAIN) == "steps"
    assert watched.after(0.2, *GATHER, TRAIN) == "collective"
    watched.collectives = {"0": [6, 5]}
    assert watched.after(0.25, *GATHER, TRAIN) == "collective"
    assert watched.after(0.25) == "steps"


@pytest.mark.parametrize("wait", [GATHER, LOADER])
def test_an_evaluation_that_waits_for_moments_stays_one(watched, wait):
    watched.after(1.0, EVALUATE)
    since_t = watched.phases.since_t
    for number in range(20):
        watched.collectives = {"0": [number, number]}
        watched.batch(gradient=True)
        assert watched.after(0.25, *(wait if number % 2 else ()), EVALUATE) == "evaluation"
    assert watched.phases.since_t == since_t
    watched.after(0.25, *wait, EVALUATE)
    watched.after(WAIT_S, *wait, EVALUATE)
    assert watched.phases.phase in ("collective", "data")


def test_batches_without_gradients_are_an_evaluation(watched):
    watched.after(1.0)
    watched.batch(gradient=False)
    assert watched.after(0.25) == "evaluation"
    assert watched.after(0.25, *LOADER, TRAIN) == "evaluation"
    watched.batch(gradient=True)
    assert watched.after(0.25) == "evaluation"  # two batches and no backward pass
    watched.record.passed(1.0)
    assert watched.after(0.25) == "steps"
    watched.step()
    watched.after(0.1)
    assert watched.after(1.5) == "steps"


def test_without_an_optimizer_batches_say_nothing(monkeypatch):
    watched = Watched(monkeypatch, steps=0)
    watched.record.reported(1, None, has_loss=False)
    watched.progressed()
    watched.batch(10, gradient=True)
    assert watched.after(1.0) == "steps"


def test_a_save_of_the_trainings_thread_is_a_checkpoint_at_once(watched):
    watched.record.saving[8] = 100.0  # another thread's
    assert watched.after(0.1) == "steps"
    watched.record.saving[7] = 100.05
    assert watched.after(0.1) == "checkpoint" and watched.phases.since_t == 100.05
    assert watched.after(5.0, *GATHER, *STORE, TRAIN) == "checkpoint"
    del watched.record.saving[7]
    assert watched.after(0.1) == "steps"


def test_a_save_that_was_left_by_a_signal_ends_with_the_next_step(watched):
    watched.record.saving[7] = 100.05
    watched.now_t += 1
    watched.step()
    assert watched.after(0.1) == "steps"


# --- real trainings --------------------------------------------------------------------------


@pytest.mark.torch
def test_phases_of_a_real_training(rank, wait_until):
    process = rank.start(str(SCRIPTS / "phases.py"))
    assert process.stdin is not None and process.stdout is not None

    def heard(said: str, is_there: Callable[[ProbeMessage], bool]) -> ProbeMessage:
        wait_until(lambda: any(map(is_there, rank.receiver.messages)), what=said)
        return next(message for message in rank.receiver.messages if is_there(message))

    def stands(phase: str, place: str) -> ProbeMessage:
        # its first message may be older than the place at which it then stays
        return heard(
            f"{phase} {place}", lambda m: m.phase == phase and f"in {place}" in (m.stands_at or "")
        )

    def go_on() -> None:
        rank.receiver.raw.clear()
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]

    start = stands("start", "prepare")
    assert start.phase_t is not None and start.phase_t <= start.t and start.batches is None
    go_on()
    heard("steps", lambda m: m.phase == "steps" and m.steps == 4 and m.batches == 4)
    go_on()
    assert heard("evaluation", lambda m: m.phase == "evaluation" and m.batches == 6).steps == 4
    go_on()
    stands("evaluation", "loop")  # recognized by its batches
    go_on()
    stands("data", "__getitem__")
    go_on()
    saving = stands("checkpoint", "__reduce__")
    go_on()
    saved = heard("saved", lambda m: m.saved is not None and m.phase == "steps").saved
    assert saved is not None and saved.began_t == pytest.approx(saving.phase_t, abs=1e-3)
    assert (saved.path, saved.n, saved.steps) == (str(rank.folder / "a.pt"), 1, saving.steps)
    assert saved.size_bytes == (rank.folder / "a.pt").stat().st_size
    assert saved.inode == (rank.folder / "a.pt").stat().st_ino
    assert heard("handlers", lambda m: bool(m.save_signals)).save_signals == [12]
    go_on()
    compiling = stands("compile", "backend")
    process.communicate("\n")
    assert process.returncode == 0
    assert (rank.receiver.last(process.pid).phase, compiling.steps) == ("steps", 7)
    stamps = [message.t for message in rank.receiver.messages[:-1]]
    assert all(b - a > 0.2 for a, b in itertools.pairwise(stamps))
