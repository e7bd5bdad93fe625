"""Adopts a job whose guardian was killed, by starting a new guardian.

The job continues in the meantime: some or all of its supervisor, agent, and ranks are alive. The
new guardian gets the launching shell's variables from the processes that still have them, so that
later restarts use the right ones. If several commands try to adopt the job, a lock decides which
one starts the guardian; the others wait until it is up.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import require_own_run
from ddptop_runner.base.start import own_words
from ddptop_runner.host import handover, procs, survival, tmux
from ddptop_runner.host.handover import AGENT_MAIN, PROBE_DIR, Handover
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.launch.gpus.choice import job_environment
from ddptop_runner.model.spec import JobSpec, read_spec, write_spec
from ddptop_runner.node.guardian_start import bring_up, is_held, starting

SEEN_WITHIN_S = 30.0
"""A new guardian's supervisor writes its first snapshot within this time."""
POLL_S = 0.02


@dataclass(frozen=True)
class Living:
    """A job's processes that have its variables."""

    supervisors: tuple[int, ...]
    agents: tuple[int, ...]
    """The agent in the last snapshot, or else whatever runs the agent's program."""
    ranks: tuple[int, ...]
    """Ranks and the processes that they started."""

    def __bool__(self) -> bool:
        """Whether anything of the job is left."""
        return bool(self.supervisors or self.agents or self.ranks)


@dataclass(frozen=True)
class Adopted:
    """A job with a new guardian."""

    view: JobView
    missing: tuple[str, ...] = ()
    """Variables with which the job was launched and that no process has anymore."""


def adopt(view: JobView, shell: Mapping[str, str]) -> Adopted | None:
    """Start a new guardian for a job that needs one; returns once it is up.

    Args:
        view: the job, just read.
        shell: the calling shell's variables, for those that no process of the job has.

    Returns:
        None if another command has started it or nothing is left of the job.

    Raises:
        DdptopError: the guardian does not come up.
    """
    if not view.needs_guardian:
        return None
    require_own_run(view.folder)
    with starting(view.folder) as mine:
        if mine:
            view = read_job(view.folder)
            if not view.needs_guardian or _held(view.folder.guardian_lock):
                return None
            living = living_processes(view)
            if not living and view.spec.placement is None:
                return None
            given, missing = _handover(view, living, shell)
            _bring_up(view, given)
            return Adopted(wait_until_guarded(view), missing)
    wait_until_guarded(view)
    return None


def wait_until_guarded(view: JobView) -> JobView:
    """The first view with a living guardian or an ended job; after a timeout, the latest view."""
    deadline_s = time.monotonic() + SEEN_WITHIN_S
    while view.needs_guardian and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        view = read_job(view.folder)
    return view


def _held(path: Path) -> bool:
    """Whether another process holds the lock."""
    free = lock(path)
    if free is None:
        return True
    os.close(free)
    return False


def living_processes(view: JobView) -> Living:
    """The remaining processes of a job."""
    supervisors, agents, ranks = [], [], []
    for pid in procs.pids_of_job(view.spec.job_id):
        words = procs.argv(pid)
        if own_words(words)[:2] == ["supervisor", str(view.folder.path)]:
            supervisors.append(pid)
        elif procs.environ_value(pid, "DDPTOP_ATTEMPT") is not None:
            ranks.append(pid)
        elif str(AGENT_MAIN) in words:  # or its store keeper, or its zygote
            agents.append(pid)
    known = None if view.snapshot is None else view.snapshot.agent
    if known is not None and known.pid in agents and procs.is_alive(known):
        agents = [known.pid]
    return Living(tuple(supervisors), tuple(agents), tuple(ranks))


def launch_variables(view: JobView) -> dict[str, str]:
    """The variables with which the job was launched, from its live processes."""
    given, _ = _handover(view, living_processes(view), {})
    names = {*view.spec.env_names, *view.spec.env_overrides}
    return {name: value for name, value in (given.env | given.job_env).items() if name in names}


def _handover(
    view: JobView, living: Living, shell: Mapping[str, str]
) -> tuple[Handover, tuple[str, ...]]:
    """(what the new guardian starts with, names of variables that no process has)."""
    spec, snapshot = view.spec, view.snapshot
    known = {
        pid: environ
        for pid in (*living.supervisors, *living.agents, *living.ranks)
        if (environ := procs.environ_of(pid)).get("DDPTOP_JOB_ID") == spec.job_id
        and procs.uid_of(pid) == os.geteuid()  # so the pid has not been reused by now
    }
    env, job_env = variables(
        supervisor=_first(known, living.supervisors),
        agent=_first(known, living.agents),
        rank=_first(known, living.ranks),
        shell=shell,
    )
    job_env["DDPTOP_JOB_ID"] = spec.job_id
    if spec.devices:
        by_uuid = spec.queue is not None and spec.queue.by_uuid
        for name, value in job_environment(spec.devices, by_uuid=by_uuid).items():
            job_env.setdefault(name, value)
    wanted = {*spec.env_names, *spec.env_overrides}
    missing = tuple(sorted(wanted - set(env) - set(job_env)))
    sources = [*living.agents, *living.ranks, *living.supervisors]
    here = handover.capture(job_env, attempt=0)
    given = Handover(
        env=env,
        job_env=job_env,
        umask=next(filter(None, map(_umask_of, living.agents)), here.umask),
        soft_limits=next(filter(None, map(handover.soft_limits_of, sources)), here.soft_limits),
        attempt=0 if snapshot is None or snapshot.attempt is None else snapshot.attempt,
        adopts=True,
        agent_pid=_agent_pid(view, living),
    )
    return given, missing


def _agent_pid(view: JobView, living: Living) -> int | None:
    known = None if view.snapshot is None else view.snapshot.agent
    return known.pid if known is not None and known.pid in living.agents else None


def _first(known: Mapping[int, dict[str, str]], pids: Sequence[int]) -> dict[str, str] | None:
    return next((known[pid] for pid in pids if pid in known), None)


def variables(
    *,
    supervisor: Mapping[str, str] | None,
    agent: Mapping[str, str] | None,
    rank: Mapping[str, str] | None,
    shell: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """(variables of the shell that launched the job, the job's additional variables).

    The supervisor has the shell's variables, the agent also has the job's, and a rank has torch's
    and the probe's as well, which are removed. The calling shell's are used if none is alive.

    Args:
        supervisor: a living supervisor's variables; None without one. The same for the next two.
        agent: the agent's.
        rank: any rank's.
        shell: the calling shell's.
    """
    launched = None if supervisor is None else handover.of_shell(supervisor)
    with_job = agent if agent is not None else None if rank is None else without_rank(rank)
    if with_job is None:
        return launched if launched is not None else handover.of_shell(shell), {}
    with_job = handover.of_shell(with_job)
    if launched is None:
        return with_job, {}
    return launched, {
        name: value for name, value in with_job.items() if launched.get(name) != value
    }


def without_rank(env: Mapping[str, str]) -> dict[str, str]:
    """A rank's variables without those of its rank, attempt, and probe."""
    kept = {
        name: value
        for name, value in handover.of_shell(env).items()
        if not handover.is_of_torch(name)
    }
    paths = [path for path in kept.pop("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [path for path in paths if path != str(PROBE_DIR)]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)} if paths else kept


def _umask_of(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return None


def _bring_up(view: JobView, given: Handover) -> None:
    """Start the guardian in tmux as before, or as a daemon if tmux has no room for it."""
    is_part = view.spec.membership is not None
    spec = _backed(view.spec, daemon=is_part or tmux.why_unusable() is not None)
    if is_held(view.spec):
        bring_up(view.folder, view.spec, given, ())
        return
    wrap = survival.plan(survival.gather(os.environ)).wrap
    try:
        bring_up(view.folder, spec, given, wrap)
    except UsageError:  # a window of the user's keeps the job's old session
        spec = _backed(spec, daemon=True)
        bring_up(view.folder, spec, given, wrap)
    if spec != view.spec:
        with contextlib.suppress(OSError, DdptopError):
            now = read_spec(view.folder)  # the supervisor may have taken devices by now
            place = {"backing": spec.backing, "tmux_socket": spec.tmux_socket}
            write_spec(view.folder, msgspec.structs.replace(now, **place))


def _backed(spec: JobSpec, *, daemon: bool) -> JobSpec:
    if daemon:
        return msgspec.structs.replace(spec, backing="daemon", tmux_socket=None)
    return msgspec.structs.replace(spec, backing="tmux", tmux_socket=tmux.socket_name())
