"""Training in one process: plain, or over several devices of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddptop_runner.foreign.arguments import (
    FRAMEWORKS,
    is_kernel,
    is_python,
    is_wrapper,
    launched_script,
    launcher_kind,
)
from ddptop_runner.foreign.claims import rendezvous_of
from ddptop_runner.foreign.tree import JobDraft, RankDraft, Tree, is_copy, start_order
from ddptop_runner.foreign.types import Launcher, ProcessFacts

ONE_PROCESS = "accelerate started a single process, so there is one rank"
NO_RANK = "no ranks yet, or between attempts"
NOT_RECOGNIZED = "not recognized as training; shown because you specified its pid"
NOT_READABLE = (
    "shown because you specified its pid; its environment is not readable, so its rank is unknown"
)


def single_jobs(tree: Tree) -> list[JobDraft]:
    """A job for each process that trains by itself, and belongs to no other job."""
    candidates = {
        process.pid: process
        for process in sorted(tree.by_pid.values(), key=start_order)
        if _may_be_single(tree, process) and not tree.is_taken(process)
    }
    drafts: list[JobDraft] = []
    covered: set[int] = set()
    for process in candidates.values():
        if covered & {process.pid, *(above.pid for above in tree.ancestors(process))}:
            continue
        below = [one for one in tree.descendants(process.pid) if one.pid in candidates]
        holders = [] if tree.devices(process) else [one for one in below if tree.devices(one)]
        if not holders:
            drafts.append(_draft(tree, process, tree.launch_chain(process)))
            covered.add(process.pid)
        elif any(_runs_the_same(tree, holder, process) for holder in holders):
            chain = [*tree.launch_chain(process), process]
            drafts.append(_draft(tree, holders[0], chain))
            covered.add(process.pid)
        # else it starts trainings of other scripts, as a sweep does: those are the jobs
    return drafts


def _may_be_single(tree: Tree, process: ProcessFacts) -> bool:
    if process.state in "ZX" or process.environ is None or not tree.can_be_rank(process):
        return False  # without its environment it may as well be one of many ranks
    if tree.devices(process):
        return True
    return bool(FRAMEWORKS & (process.libraries or frozenset())) and not is_kernel(process)


def _runs_the_same(tree: Tree, worker: ProcessFacts, parent: ProcessFacts) -> bool:
    """Whether `worker` is one that multiprocessing started for `parent`."""
    return any(worker.pid == one.pid for one in tree.workers(parent)) or is_copy(worker, parent)


def _draft(tree: Tree, process: ProcessFacts, chain: Sequence[ProcessFacts]) -> JobDraft:
    launcher, notes = _kind(tree, process, chain)
    # a batch script's shell and the daemon above it are not the training's
    batch = [index for index, one in enumerate(chain) if launcher_kind(one) == "srun"]
    below = chain[batch[-1] + 1 :] if batch else chain
    launchers = [one for one in below if is_wrapper(one) or is_python(one) or launcher_kind(one)]
    return JobDraft(
        launcher=launcher,
        ranks=[RankDraft(process, 0, 0, "single")],
        launchers=launchers,
        world_size=1,
        rendezvous=None if launcher == "python" else rendezvous_of(process.environ),
        notes=notes,
    )


def _kind(
    tree: Tree, process: ProcessFacts, chain: Sequence[ProcessFacts]
) -> tuple[Launcher, list[str]]:
    kinds = [kind for one in chain if (kind := launcher_kind(one)) not in (None, "srun")]
    held = len(tree.devices(process))
    libraries = process.libraries or frozenset()
    notes = [f"one process uses {held} devices: no per-rank metrics"]
    if kinds and kinds[-1] is not None:
        return kinds[-1], [ONE_PROCESS] if kinds[-1] == "accelerate" else []
    if held < 2:
        return "python", []
    if "torch" in libraries:
        return "DataParallel", notes
    if "tensorflow" in libraries or _has_tensorflow_threads(process):
        return "MirroredStrategy", notes
    return "python", notes


def _has_tensorflow_threads(process: ProcessFacts) -> bool:
    return any(
        name.startswith(("tf_", "collective_ops", "tensorflow")) for name in process.threads or ()
    )


def launchers_without_ranks(tree: Tree) -> list[JobDraft]:
    """A job for each launcher that is starting, or between two attempts: it has no rank now."""
    waiting = {
        process.pid: process
        for process in sorted(tree.by_pid.values(), key=start_order)
        if _launches_training(process)
        and process.environ is not None
        and process.state not in "ZX"
        and not tree.is_taken(process)
        and not any(one.pid in tree.members for one in tree.descendants(process.pid))
    }
    return [
        JobDraft(
            launcher=launcher_kind(process) or "python",
            ranks=[],
            launchers=[*tree.launch_chain(process), process],
            notes=[NO_RANK],
        )
        for process in waiting.values()
        if not any(above.pid in waiting for above in tree.ancestors(process))
    ]


def _launches_training(process: ProcessFacts) -> bool:
    kind = launcher_kind(process)
    if kind in ("mpirun", "srun"):  # those launch anything
        return kind == "mpirun" and launched_script(process.argv) is not None
    return kind is not None


def pinned_jobs(tree: Tree, pinned: Collection[int]) -> list[JobDraft]:
    """A job for each of these processes that belongs to none."""
    drafts = []
    for pid in sorted(pinned):
        process = tree.by_pid.get(pid)
        if process is None or tree.is_taken(process):
            continue
        launcher: Launcher = "python"
        drafts.append(
            JobDraft(
                launcher=launcher,
                ranks=[RankDraft(process, 0, 0, "single")],
                notes=[NOT_RECOGNIZED if process.environ is not None else NOT_READABLE],
            )
        )
    return drafts
