"""One job in a comparison: everything but its losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddptop.view.curve import LossCurve
from ddptop_runner.job.registry import AnyJob, JobView
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import RunStep
from ddptop_runner.model.spec import JobSpec

LETTERS = "ABCD"
"""What the jobs are called on the chart: as many can be compared at once."""


@dataclass(frozen=True)
class Run:
    """A job and its losses."""

    view: JobView
    curve: LossCurve = field(default_factory=LossCurve)
    attempts: tuple[tuple[int, float], ...] = ()
    """Each attempt with its start, in seconds since the job's."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """By attempt, the steps before it."""
    start_s: float = 0.0
    """The job's start, unix seconds."""
    trouble: str | None = None
    """Why its losses could not be read."""

    @property
    def job(self) -> str:
        """The job's name."""
        return self.view.job

    @property
    def step(self) -> RunStep | None:
        """At which step it is."""
        return run_step.of_snapshot(self.view.snapshot)

    @property
    def total_steps(self) -> int | None:
        """How many there are to be."""
        return None if self.view.snapshot is None else self.view.snapshot.total_steps

    @property
    def restarts(self) -> int | None:
        """How often all ranks were started again."""
        if self.view.snapshot is None or self.view.snapshot.attempt is None:
            return None
        return self.view.snapshot.attempt

    @property
    def ranks(self) -> int | None:
        """The world size."""
        snapshot = self.view.snapshot
        return snapshot.world_size if snapshot is not None else self.view.world_size

    @property
    def devices(self) -> str:
        """`2x H100 80GB HBM3`, or `CPU`."""
        devices = self.view.spec.devices
        if not devices:
            return "CPU"
        names = Counter((device.name or "GPU").removeprefix("NVIDIA ") for device in devices)
        return ", ".join(f"{number}x {name}" for name, number in names.items())

    @property
    def script(self) -> str:
        """The script or module as given; of a command its executable."""
        spec = self.view.spec
        return f"-m {spec.target}" if spec.kind == "module" else spec.target


def options_of(spec: JobSpec) -> dict[str, str]:
    """What was given to the script, by option: `--lr` → `0.01`; a bare option is `yes`.

    What belongs to no option is named by its place: `argument 1`.
    """
    found: dict[str, str] = {}
    place = 0
    words = list(spec.args)
    while words:
        word = words.pop(0)
        if not _is_option(word):
            place += 1
            found[f"argument {place}"] = word
            continue
        name, equals, value = word.partition("=")
        if not equals:
            value = words.pop(0) if words and not _is_option(words[0]) else "yes"
        found[name] = f"{found[name]} {value}" if name in found else value
    return found


def _is_option(word: str) -> bool:
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def companions(jobs: Iterable[AnyJob], first: str) -> list[JobView]:
    """The jobs that another can be compared with: those of its script first, newest first."""
    own = [job for job in jobs if isinstance(job, JobView)]
    mine = next((job for job in own if job.job == first), None)
    others = [job for job in own if job.job != first]
    others.sort(key=lambda job: job.created_at, reverse=True)
    others.sort(key=lambda job: mine is None or job.spec.target != mine.spec.target)
    return others
