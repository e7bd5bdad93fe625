"""What a person can do to a job from the interface: the question, the effect, and the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddptop.commands.stacks import stored_files
from ddptop.tui import launching
from ddptop.tui.render.units import plural
from ddptop_runner import commands
from ddptop_runner.errors import DdptopError
from ddptop_runner.logs import sanitize
from ddptop_runner.registry import JobView

GRACE_S = 30.0


@dataclass(frozen=True)
class Operation:
    """Something to be confirmed and then done in a thread."""

    question: str
    effect: str
    verb: str
    done: str
    """What to say afterwards."""
    run: Callable[[], None]
    """Blocks; raises DdptopError."""


Maker = Callable[[JobView], Operation]
"""Makes the operation for one job."""


def _ranks(view: JobView) -> str:
    size = view.snapshot.world_size if view.snapshot is not None else None
    number = size or view.spec.nproc
    return "its rank" if number == 1 else f"all {number} ranks"


def stop(view: JobView) -> Operation:
    """End a job in order."""
    return Operation(
        f"Stop {view.job}?",
        f"SIGTERM to {_ranks(view)}, so that a script which handles it can save; after "
        f"{GRACE_S:.0f} s SIGKILL to what is left. It is not restarted. Logs and history stay.",
        "Stop",
        f"{view.job} is asked to stop",
        lambda: commands.stop(view, grace_s=GRACE_S),
    )


def kill(view: JobView) -> Operation:
    """End a job at once."""
    return Operation(
        f"Kill {view.job}?",
        f"SIGKILL to {_ranks(view)} and everything they started, now. Nothing can be saved: the "
        "work since the last checkpoint is lost.",
        "Kill",
        f"{view.job} is being killed",
        lambda: commands.kill(view),
    )


def restart_group(view: JobView) -> Operation:
    """Restart all ranks."""
    return Operation(
        f"Restart all ranks of {view.job}?",
        f"A group restart: {_ranks(view)} end and start again as a new attempt. The script resumes "
        "from its last checkpoint, if it does that at all. It does not use up a restart.",
        "Restart",
        f"{view.job}: group restart asked for",
        lambda: commands.restart_group(view),
    )


def again(view: JobView) -> Operation:
    """Start an ended job again."""
    attempts = (view.snapshot.attempt or 0) + 1 if view.snapshot is not None else 0
    return Operation(
        f"Start {view.job} again?",
        f"A new attempt in the same folder, after {plural(attempts, 'attempt')}, with this "
        "shell's variables. Logs and history so far stay.",
        "Start",
        f"{view.job} starts again",
        lambda: launching.restart_ended(view.job),
    )


def remove(view: JobView) -> Operation:
    """Delete an ended job."""
    return Operation(
        f"Remove {view.job}?",
        f"Its logs, history and evidence are deleted: {view.folder.path}. This cannot be undone. "
        "Checkpoints that the script wrote elsewhere stay.",
        "Remove",
        f"{view.job} is removed",
        lambda: commands.remove(view),
    )


def read_stacks(view: JobView) -> list[tuple[str, str]]:
    """Where each rank stands: asked of a live job, read from the evidence of an ended one.

    Raises:
        DdptopError: when the supervisor does not answer, or no evidence was kept.
    """
    if view.is_live:
        entries = commands.stacks(view)["stacks"]
        return [
            (
                f"rank {entry['rank']}   pid {entry['pid'] or 'n/a'}",
                _clean(
                    entry["text"] or f"no stacks: {entry['note'] or 'no reason given'}"
                ).rstrip(),
            )
            for entry in entries
        ]
    files = stored_files(view, None)
    if not files:
        raise DdptopError(f"{view.job} left no stacks", "they are kept when a rank fails or hangs")
    return [(path.stem.removeprefix("stacks-").replace("-", " "), _text(path)) for path in files]


def _text(path: Path) -> str:
    try:
        return _clean(path.read_text(encoding="utf-8", errors="replace")).rstrip()
    except OSError as error:
        return f"cannot be read ({error})"


def _clean(text: str) -> str:
    return sanitize(text)
