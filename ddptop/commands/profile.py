"""`ddptop profile`: a few steps of live ranks, under torch.profiler."""

from __future__ import annotations

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.output import info, put, put_json
from ddptop.sources.profile import profile_job
from ddptop_runner.jobs.profile import profilable
from ddptop_runner.jobs.slurm_queue import find


def run_profile(job: str | None, ranks: tuple[int, ...], steps: int, as_json: bool) -> int:
    """Profile, and print shares, ops, and differences."""
    view = adopt_if_unguarded(find(job))
    profilable(view, ranks)
    if not as_json:
        whom = "" if ranks else ": its slowest and its median rank"
        info(f"ddptop: profiling {steps} steps of {view.job}{whom}")
    report = profile_job(view, ranks, steps)
    if as_json:
        put_json(report)
        return 0
    for title, text in report.sections():
        put(f"--- {title} ---")
        put(text)
    return 0
