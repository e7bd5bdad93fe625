"""Keeps the history that the restart policy decides on, and prepares the next attempt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.devices.words import name_of, names_of
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.restarts import fitness, policy
from ddptop_runner.judge.restarts.fitness import HealthBook, Known, Unfit, key_of
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, JobSpec

Report = Callable[[], "DeviceReport | None"]
FRESH_WAIT_S = 3.0
"""So long a sample from after the failure is waited for: a device is lost first and found so at
the next look."""
FRESH_POLL_S = 0.1

_T = TypeVar("_T")


@dataclass(frozen=True)
class NextAttempt:
    """On what the next attempt runs."""

    spec: JobSpec
    """The job's, with the devices and the number of ranks of the next attempt."""
    refused: str | None = None
    """Why there can be no next attempt, in words."""
    notes: tuple[str, ...] = ()
    """What a person should know about it."""


@dataclass(frozen=True)
class _World:
    """On what an attempt runs."""

    nproc: int
    devices: tuple[str, ...]
    """By `key_of`."""


class RestartPlanner:
    """One job's restarts.

    Args:
        spec: the job, as it was asked for.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._history = policy.History()
        self._decided: tuple[int, policy.Decision] | None = None
        """The last failed attempt and what was decided; the decision stands if it is asked for
        again, as by an agent whose supervisor was started again during the wait."""
        self._failed_s = 0.0
        self._health = HealthBook()
        self._looked_s = 0.0
        self.set_aside: list[Device] = []
        """Devices that attempts go on without."""
        self._why_aside: dict[str, str] = {}
        self._world: _World | None = None
        """On what the current attempt was started."""

    @property
    def used(self) -> int:
        """Restarts of the budget used since it was last filled."""
        return self._history.used

    @used.setter
    def used(self, used: int) -> None:
        self._history = replace(self._history, used=used)

    @property
    def left(self) -> int:
        """What the budget still has."""
        return max(0, self._spec.max_restarts - self.used)

    @property
    def refilled(self) -> str | None:
        """What filled the budget again last, in words; None when nothing has."""
        return self._history.refilled

    @property
    def spec(self) -> JobSpec:
        """The job as its next attempt runs: without the devices that are set aside."""
        if not self.set_aside or not self._spec.devices:
            return self._spec
        aside = {key_of(device) for device in self.set_aside}
        devices = [device for device in self._spec.devices if key_of(device) not in aside]
        nproc = max(1, self._spec.nproc * len(devices) // len(self._spec.devices))
        return msgspec.structs.replace(self._spec, devices=devices, nproc=nproc)

    def begin_job(self, spec: JobSpec) -> None:
        """The job that was queued has its devices."""
        self._spec = spec

    # -- failures --------------------------------------------------------------------------------

    def failed(self, outcome: policy.AttemptOutcome) -> bool:
        """An attempt ended badly; False when its end had been decided on already."""
        failed = self._history.failed
        if failed and failed[-1].outcome.attempt == outcome.attempt:
            return False
        self._decided = None
        self._failed_s = boottime_s()
        self._history = policy.record(self._history, outcome)
        return True

    def decide(self) -> policy.Decision:
        """What to do after the last failure; a restart is taken off the budget, once."""
        if self._decided is not None:
            return self._decided[1]
        history = self._history
        decision = policy.decide(history, self._spec.max_restarts, random.random())
        if decision.restart:
            self.used += 1
        self._decided = (history.failed[-1].outcome.attempt, decision)
        return decision

    def asked(self) -> None:
        """A person restarts the job: it costs nothing, and what failed before counts no more.

        A restart that was only waited for is given back to the budget.
        """
        if self._decided is not None and self._decided[1].restart:
            self.used = max(0, self.used - 1)
        self._history = replace(self._history, failed=())
        self._decided = None

    @property
    def needs_new_agent(self) -> bool:
        """Whether the next attempt runs on other devices than the current one was started on."""
        return self._world is not None and self._world != _world_of(self.spec)

    def begin_attempt(self) -> None:
        """The ranks of an attempt are started."""
        self._decided = None
        self._world = _world_of(self.spec)
        self._health.begin_attempt()

    # -- devices ---------------------------------------------------------------------------------

    def look(self, report: DeviceReport | None) -> list[Finding]:
        """Once a tick: fold in what the sampler says; findings on devices that are set aside."""
        if report is not None and report.boottime_s > self._looked_s and report.source is not None:
            self._looked_s = report.boottime_s
            self._health.look(report.gpus, report.boottime_s)
        return [self._finding(device) for device in self.set_aside]

    def _finding(self, device: Device) -> Finding:
        gpus = (device.index,)
        if self._health.is_well_again(device, self._looked_s):
            message = (
                f"{name_of(device)} is healthy again: run `ddptop restart {self._spec.job}` "
                "to use it again"
            )
            return Finding(f"healthy-{device.index}", "info", message, gpus=gpus)
        why = self._why_aside.get(key_of(device), "broken")
        world = _world_in_words(self._spec, self.spec)
        message = f"{name_of(device)} is set aside ({why}); continuing {world}"
        return Finding(f"set-aside-{device.index}", "warning", message, gpus=gpus, is_told=True)

    async def prepare(self, report: Report) -> NextAttempt:
        """Look at the health of the job's devices before the next attempt.

        Args:
            report: gives the latest one of the job's devices; None where nothing samples them.
        """
        if not self._spec.devices:
            return NextAttempt(self.spec)
        deadline_s = boottime_s() + FRESH_WAIT_S
        while (latest := report()) is not None and latest.source is not None:
            if latest.boottime_s > self._failed_s or boottime_s() >= deadline_s:
                break
            await asyncio.sleep(FRESH_POLL_S)
        self.look(latest)
        return self._choose(self._health.end_attempt(self.spec.devices or []))

    def _choose(self, unfit: dict[str, Unfit]) -> NextAttempt:
        before = self.spec
        ill = [
            (device, unfit[key_of(device)])
            for device in before.devices or []
            if key_of(device) in unfit
        ]
        if not ill:
            return NextAttempt(before)
        if not self._spec.allow_shrink:
            return self._with_all(ill)
        if len(ill) == len(before.devices or []):
            names = _in_words(ill)
            return NextAttempt(before, f"{names}: no devices are left to continue on")
        for device, why in ill:
            self.set_aside.append(device)
            self._why_aside[key_of(device)] = why.reason
            self._health.set_aside(device, why)
        note = f"{_in_words(ill)}: set aside; continuing {_world_in_words(before, self.spec)}"
        return NextAttempt(self.spec, notes=(note,))

    def _with_all(self, ill: Sequence[tuple[Device, Unfit]]) -> NextAttempt:
        certain = [(device, why) for device, why in ill if why.certain]
        if certain:
            return NextAttempt(
                self.spec,
                f"{_in_words(certain)}: the job needs all its devices; relaunch it with "
                "--allow-shrink to continue with fewer ranks, or choose other GPUs with --gpus",
            )
        note = f"{_in_words(ill)}: continuing anyway; to set such devices aside, use --allow-shrink"
        return NextAttempt(self.spec, notes=(note,))

    def take_back(self) -> list[Device]:
        """Take all devices back that are fit now; those that were taken."""
        fit = [device for device in self.set_aside if self._health.is_fit(device)]
        self.set_aside = [device for device in self.set_aside if device not in fit]
        return fit

    async def wait_for_memory(
        self, report: Report, is_ours: Callable[[int], bool], skip: Callable[[], bool]
    ) -> fitness.Waited:
        """Wait until the devices have the memory of an ended attempt back.

        Args:
            report: as for `prepare`.
            is_ours: whether a pid is a living process of the attempt.
            skip: whether somebody does not want to wait any more.
        """
        devices = self.spec.devices
        if not devices:
            return fitness.Waited(0.0)
        idle = self._health.idle_bytes()

        def look(gpus: Sequence[GpuSample]) -> list[fitness.Held]:
            return fitness.still_held(gpus, devices, idle, is_ours)

        return await fitness.wait(report, look, skip)

    # -- a supervisor that is started again -------------------------------------------------------

    def remember(self) -> dict[str, Any]:
        """What the planner of a supervisor that is started again has to know."""
        decided = self._decided
        found: dict[str, Any] = msgspec.to_builtins(
            {
                "history": self._history,
                "decided": None if decided is None else [decided[0], decided[1]],
                "set_aside": self.set_aside,
                "why_aside": self._why_aside,
                "known": self._health.known,
                "world": self._world,
            }
        )
        return found

    def recall(self, memory: dict[str, Any]) -> None:
        """Go on with what `remember` gave; anything malformed is left out."""
        self._history = _read(memory, "history", policy.History) or self._history
        self._decided = _read(memory, "decided", tuple[int, policy.Decision])
        self.set_aside = _read(memory, "set_aside", list[Device]) or []
        self._why_aside = _read(memory, "why_aside", dict[str, str]) or {}
        self._health.known = _read(memory, "known", dict[str, Known]) or {}
        self._world = _read(memory, "world", _World)


def _world_of(spec: JobSpec) -> _World:
    return _World(spec.nproc, tuple(key_of(device) for device in spec.devices or ()))


def _read(memory: dict[str, Any], name: str, type_: type[_T]) -> _T | None:
    try:
        return msgspec.convert(memory[name], type_)
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def _in_words(ill: Sequence[tuple[Device, Unfit]]) -> str:
    """`GPU 2 (NVIDIA H100) is lost; GPU 3 reports XID 79`."""
    parts = []
    for device, why in ill:
        name = name_of(device) + (f" ({device.name})" if device.name else "")
        parts.append(f"{name}: {why.reason}")
    return "; ".join(parts)


def _world_in_words(before: JobSpec, after: JobSpec) -> str:
    """What going on with fewer ranks means."""
    on = f" on {names_of(after.devices)}" if after.devices else ""
    if after.nproc == before.nproc:
        return f"with {after.nproc} rank{'s' if after.nproc > 1 else ''}{on}"
    return (
        f"with {after.nproc} rank{'s' if after.nproc > 1 else ''}{on} instead of {before.nproc}: "
        f"the global batch is {after.nproc}/{before.nproc} of its previous size unless the script "
        "adjusts it; the learning rate and the sampler are up to the script"
    )
