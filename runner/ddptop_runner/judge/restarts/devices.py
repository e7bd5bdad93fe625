"""Chooses the devices of a job's next attempt, and waits for their memory to be released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.devices.words import name_of, names_of
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.restarts import fitness
from ddptop_runner.judge.restarts.fitness import HealthBook, Known, Unfit, key_of
from ddptop_runner.model.events import SetAside
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, JobSpec

Report = Callable[[], "DeviceReport | None"]
FRESH_WAIT_S = 3.0
"""How long to wait for a sample from after the failure, which may show a lost device."""
FRESH_POLL_S = 0.02


@dataclass(frozen=True)
class Choice:
    """The devices of the next attempt."""

    aside: list[SetAside]
    """Devices newly found to be unfit."""
    refused: str | None = None
    """Why there can be no next attempt."""
    notes: tuple[str, ...] = ()
    """Messages for the user."""


def without(spec: JobSpec, aside: Sequence[SetAside]) -> JobSpec:
    """The job without the devices that are set aside, and with proportionally fewer ranks."""
    if not aside or not spec.devices:
        return spec
    keys = {key_of(one.device) for one in aside}
    devices = [device for device in spec.devices if key_of(device) not in keys]
    nproc = max(1, spec.nproc * len(devices) // len(spec.devices))
    return msgspec.structs.replace(spec, devices=devices, nproc=nproc)


class JobDevices:
    """The health of one job's devices.

    Args:
        spec: the job as requested.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._health = HealthBook()
        self._looked_s = 0.0

    def begin_job(self, spec: JobSpec) -> None:
        """Use the devices that a queued job has been given."""
        self._spec = spec

    def look(self, report: DeviceReport | None, aside: Sequence[SetAside]) -> list[Finding]:
        """Fold in the sampler's report, once per tick; returns findings on devices set aside."""
        if report is not None and report.boottime_s > self._looked_s and report.source is not None:
            self._looked_s = report.boottime_s
            self._health.look(report.gpus)
        return [self._finding(one, aside) for one in aside]

    def _finding(self, one: SetAside, aside: Sequence[SetAside]) -> Finding:
        index = one.device.index
        if self._health.is_fit(one.device):
            message = (
                f"{name_of(one.device)} is healthy again: run `ddptop restart {self._spec.job}` "
                "to use it again"
            )
            return Finding(f"healthy-{index}", "info", message, gpus=(index,))
        world = _world_in_words(self._spec, without(self._spec, aside))
        message = f"{name_of(one.device)} is set aside ({one.reason}); continuing {world}"
        return Finding(f"set-aside-{index}", "warning", message, gpus=(index,), has_event=True)

    async def choose(
        self,
        report: Report,
        aside: Sequence[SetAside],
        failed_s: float,
        request: Callable[[], None] = lambda: None,
    ) -> Choice:
        """Check the health of the job's devices before the next attempt.

        Args:
            report: returns the latest report on the job's devices; None if nothing samples them.
            aside: devices already set aside.
            failed_s: CLOCK_BOOTTIME of the failure.
            request: asks for a report at once.
        """
        if not self._spec.devices:
            return Choice([])
        request()
        deadline_s = boottime_s() + FRESH_WAIT_S
        while (latest := report()) is not None and latest.source is not None:
            if latest.boottime_s > failed_s or boottime_s() >= deadline_s:
                break
            await asyncio.sleep(FRESH_POLL_S)
        self.look(latest, aside)
        before = without(self._spec, aside)
        unfit = self._health.end_attempt(before.devices or [])
        failing = [
            (device, unfit[key_of(device)])
            for device in before.devices or []
            if key_of(device) in unfit
        ]
        if not failing:
            return Choice([])
        if not self._spec.allow_shrink:
            return _with_all(failing)
        if len(failing) == len(before.devices or []):
            return Choice([], f"{_in_words(failing)}: no devices are left to continue on")
        for device, why in failing:
            self._health.set_aside(device, why)
        new = [SetAside(device=device, reason=why.reason) for device, why in failing]
        after = without(self._spec, [*aside, *new])
        note = f"{_in_words(failing)}: set aside; continuing {_world_in_words(before, after)}"
        return Choice(new, notes=(note,))

    def fit_again(self, aside: Sequence[SetAside]) -> list[Device]:
        """Devices that were set aside and are fit now."""
        return [one.device for one in aside if self._health.is_fit(one.device)]

    async def wait_for_memory(
        self,
        report: Report,
        aside: Sequence[SetAside],
        is_ours: Callable[[int], bool],
        skip: Callable[[], bool],
        request: Callable[[], None] = lambda: None,
    ) -> fitness.Waited:
        """Wait until an ended attempt's device memory is released.

        Args:
            report: as for `choose`.
            aside: devices that are set aside.
            is_ours: whether a pid is a living process of the attempt.
            skip: whether to stop waiting.
            request: as for `choose`.
        """
        devices = without(self._spec, aside).devices
        if not devices:
            return fitness.Waited(0.0)
        idle = self._health.idle_bytes()

        def look(gpus: Sequence[GpuSample]) -> list[fitness.Held]:
            return fitness.still_held(gpus, devices, idle, is_ours)

        return await fitness.wait(report, look, skip, request)

    @property
    def known(self) -> dict[str, Known]:
        """What is known about each device, for the next supervisor."""
        return self._health.known

    @known.setter
    def known(self, known: dict[str, Known]) -> None:
        self._health.known = known


def _with_all(failing: Sequence[tuple[Device, Unfit]]) -> Choice:
    certain = [(device, why) for device, why in failing if why.certain]
    if certain:
        return Choice(
            [],
            f"{_in_words(certain)}: the job needs all its devices; relaunch it with "
            "--allow-shrink to continue with fewer ranks, or choose other GPUs with --gpus",
        )
    note = f"{_in_words(failing)}: continuing anyway; to set such devices aside, use --allow-shrink"
    return Choice([], notes=(note,))


def _in_words(failing: Sequence[tuple[Device, Unfit]]) -> str:
    """`GPU 2 (NVIDIA H100) is lost; GPU 3 reports XID 79`."""
    parts = []
    for device, why in failing:
        name = name_of(device) + (f" ({device.name})" if device.name else "")
        parts.append(f"{name}: {why.reason}")
    return "; ".join(parts)


def _world_in_words(before: JobSpec, after: JobSpec) -> str:
    on = f" on {names_of(after.devices)}" if after.devices else ""
    if after.nproc == before.nproc:
        return f"with {after.nproc} rank{'s' if after.nproc > 1 else ''}{on}"
    return (
        f"with {after.nproc} rank{'s' if after.nproc > 1 else ''}{on} instead of {before.nproc}: "
        f"the global batch is {after.nproc}/{before.nproc} of its previous size unless the script "
        "adjusts it; the learning rate and the sampler are up to the script"
    )
