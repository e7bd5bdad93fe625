"""Which devices a launch gets: looks at the machine and decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.devices.once import sample_once
from ddptop_runner.devices.words import LIBRARY_MISSING, names_of, wanted_in_words
from ddptop_runner.launch.gpus import select, usage
from ddptop_runner.launch.gpus.select import GpuRequest, parse_gpus
from ddptop_runner.launch.gpus.usage import DeviceUse, busy_in_words, choice_in_words, idlest
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, DeviceQueue, JobSpec

OPTIONS_AGAINST = "--force and --wait-gpus cannot be used together"


@dataclass(frozen=True)
class DeviceChoice:
    """What a launch gets, or what it waits for."""

    devices: list[Device] | None
    """As in JobSpec; None also while it has to wait."""
    queue: DeviceQueue | None = None
    by_uuid: bool = False
    """Show the devices by UUID, because one of the machine is lost."""
    notes: tuple[str, ...] = ()
    remake: Callable[[], DeviceChoice] | None = field(default=None, compare=False, repr=False)
    """Decides again by what other jobs have taken meanwhile, without asking the driver again."""
    why_none: str | None = None
    """Why a machine's devices are not the job's; None where it has some, or wants or needs none."""

    @property
    def waits(self) -> bool:
        """Whether the job is to be queued."""
        return self.queue is not None and self.devices is None

    @property
    def count(self) -> int:
        """How many devices the job has or will have."""
        if self.devices is None and self.queue is not None:
            return self.queue.count
        return len(self.devices or ())

    @property
    def environment(self) -> dict[str, str]:
        """The variables that show the job its devices."""
        return select.job_environment(self.devices, by_uuid=self.by_uuid)


def choose(
    asked: str | None,
    env: Mapping[str, str],
    nproc: int | None,
    *,
    force: bool = False,
    wait: bool = False,
    is_dry: bool = False,
) -> DeviceChoice:
    """Decide which devices a new job gets.

    Args:
        asked: the value of `--gpus`; None when it was not given.
        env: the launching shell's variables, with those of `--env`.
        nproc: the value of `--nproc`; None when it was not given.
        force: `--force`: take devices that are busy.
        wait: `--wait-gpus`: queue where too few are free.
        is_dry: `--dry-run`: note what would be refused, and go on.

    Raises:
        UsageError: when a device cannot be had, naming who holds it.
    """
    request = None if asked is None else parse_gpus(asked)
    if force and wait:
        raise UsageError(OPTIONS_AGAINST, "use one of them")
    visible = env.get("CUDA_VISIBLE_DEVICES")
    named = select.mig_instances(visible)
    named += [uuid for uuid in (request.uuids if request else ()) if uuid.startswith("MIG-")]
    present, why_none = present_devices(named)
    machine = select.Machine(present, visible)
    pool = machine.resolve(request, nproc)
    if not pool:
        if wait:
            raise UsageError(
                "--wait-gpus has no effect: this job uses no GPUs", "remove --wait-gpus"
            )
        if request is not None:
            why_none = None
        elif present:
            why_none = machine.why_none()
        return DeviceChoice(pool, why_none=why_none)
    notes = machine.left_out(request)
    count = len(pool)
    if request is not None and request.kind == "auto":
        count = request.count
        pool = sorted(pool, key=lambda device: device.index)
    return _Decision(
        pool, count, present, notes, request, force, wait, is_dry=is_dry, allowed=machine.usable
    ).make()


def again(
    spec: JobSpec, env: Mapping[str, str], *, force: bool = False, wait: bool = False
) -> DeviceChoice:
    """The devices of an ended job, looked at as for a new one.

    Args:
        spec: the job.
        env: the calling shell's variables, whose CUDA_VISIBLE_DEVICES is the outer bound.
        force: `--force`: take devices that are busy.
        wait: `--wait-gpus`: queue where one is busy.

    Raises:
        UsageError: when one is gone, lost, not allowed or busy.
    """
    if force and wait:
        raise UsageError(OPTIONS_AGAINST, "use one of them")
    devices = spec.devices
    if devices is None and spec.queue is not None:  # it ended before it got any
        wait = wait or not force
        pool, count = spec.queue.candidates, spec.queue.count
    else:
        pool, count = devices or [], len(devices or ())
    if not pool:
        if wait:
            raise UsageError(
                "--wait-gpus has no effect: this job uses no GPUs", "remove --wait-gpus"
            )
        return DeviceChoice(devices)
    present, _ = present_devices([device.uuid or "" for device in pool if device.is_mig])
    if not present:
        raise UsageError(
            f"{spec.job} ran on {names_of(pool)}, but no GPUs were found on this machine",
            "see `ddptop gpus`",
        )
    select.Machine(present, env.get("CUDA_VISIBLE_DEVICES")).require_allowed(pool)
    return _Decision(pool, count, present, [], None, force, wait).make()


def present_devices(named: Sequence[str] = ()) -> tuple[list[GpuSample], str | None]:
    """The machine's devices now, with the MIG instances of these UUIDs.

    Returns:
        Also why there is none although there is a driver; None where there is none of either.
    """
    report = sample_once()
    present = list(report.gpus)
    why_none = None if present or report.note == LIBRARY_MISSING else report.note
    known = [gpu.uuid or "" for gpu in present]
    missing = [uuid for uuid in named if not any(there.startswith(uuid) for there in known)]
    if missing:
        present += sample_once(uuids=missing).gpus
    return present, why_none


@dataclass(frozen=True)
class _Decision:
    """Everything but the claims of other jobs, so that it can be made again with newer ones."""

    pool: Sequence[Device]
    count: int
    present: Sequence[GpuSample]
    left_out: Sequence[str]
    request: GpuRequest | None
    force: bool
    wait: bool
    is_dry: bool = False
    """Whether nothing is to be started: what would be refused is noted."""
    allowed: Sequence[Device] = ()
    """All devices that `--gpus` may name; none for `restart`, which keeps a job's devices."""

    def make(self) -> DeviceChoice:
        """Decide by what other jobs have now.

        Raises:
            UsageError: when a device is busy, without `--wait-gpus` or `--force`.
        """
        uses = usage.uses(self.pool, self.present)
        chosen = idlest(uses, self.count)
        busy = [use for use in chosen if use.busy]
        if gone := [use for use in chosen if use.gone]:
            raise UsageError(busy_in_words(gone), "see `ddptop gpus`")
        notes = [*self.left_out]
        is_refused = bool(busy) and not self.force and not self.wait
        if is_refused:
            error = self._refusal(uses, chosen)
            if not self.is_dry:
                raise error
            notes.append(f"this launch would fail: {error.message}; {error.hint}")
        devices: list[Device] | None = [use.device for use in chosen]
        by_uuid = any(gpu.lost for gpu in self.present)
        queue = None
        if self.wait:
            queue = DeviceQueue(
                candidates=list(self.pool), count=self.count, since=utc_now(), by_uuid=by_uuid
            )
        if queue is not None and busy:
            devices = None
            notes.append(f"waiting for {wanted_in_words(queue)}; {busy_in_words(uses)}")
        elif self.request is not None and self.request.kind == "auto":
            notes.append(choice_in_words(chosen, uses))
        elif busy and not is_refused:
            notes.append(f"using busy GPUs (--force): {busy_in_words(busy)}")
        if devices is not None:
            notes += _doubts(chosen)
        return DeviceChoice(devices, queue, by_uuid, tuple(notes), self.make)

    def _refusal(self, uses: Sequence[DeviceUse], chosen: Sequence[DeviceUse]) -> UsageError:
        """Names who is on which device, and how else the job can be had.

        Args:
            uses: the devices that the job may get.
            chosen: those of them that it would get.
        """
        kind = None if self.request is None else self.request.kind
        free = [use.device for use in uses if not use.busy]
        remedy = ""
        if kind == "auto":
            verb = "is" if len(free) == 1 else "are"
            what = f"--gpus auto:{self.count}: {len(free)} of {len(uses)} GPUs {verb} free"
            what += f" ({busy_in_words(uses)})"
            remedy = f"--gpus auto:{len(free)}, " if free else ""
        else:
            held = [use.device for use in chosen if use.busy]
            verb = "is" if len(held) == 1 else "are"
            words = busy_in_words(chosen)
            alike = f"{names_of(held)}: "  # the same holder on all of them
            words = f": {words[len(alike) :]}" if words.startswith(alike) else f" ({words})"
            what = f"{names_of(held)} {verb} busy{words}"
            elsewhere = sum(not use.busy for use in usage.uses(self.allowed, self.present))
            if self.allowed and free and not any(device.is_mig for device in free):
                remedy = f"--gpus {','.join(str(device.index) for device in free)}, "
            elif kind in ("indices", "uuids") and elsewhere and not held[0].is_mig:
                remedy = f"--gpus auto:{min(elsewhere, len(chosen))} to use the idlest, "
        return UsageError(what, f"pass {remedy}--wait-gpus to wait, or --force to use busy GPUs")


def _doubts(chosen: Sequence[DeviceUse]) -> list[str]:
    """A line for each reason that leaves in doubt whether devices are free."""
    reasons: dict[str, list[Device]] = {}
    for use in chosen:
        if use.doubt is not None:
            reasons.setdefault(use.doubt, []).append(use.device)
    return [f"{names_of(devices)}: {reason}" for reason, devices in reasons.items()]


def free_now(env: Mapping[str, str]) -> int | None:
    """How many of the allowed devices are free; None where there is none at all."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    present, _ = present_devices(select.mig_instances(visible))
    pool = select.Machine(present, visible).resolve(None)
    if pool is None:
        return None
    return sum(not use.busy for use in usage.uses(pool, present))
