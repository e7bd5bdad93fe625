"""Turns a launch request into a running guardian: checks, run folder, start.

`prepare` changes nothing, so `--dry-run` and refused requests leave no trace. `start` creates the
run folder and starts the guardian in tmux or, if tmux is unusable, as a daemon. `restart_ended`
starts an ended job again. An ended job gives up its name to a new one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ddptop_runner.base import interpreters
from ddptop_runner.base.clock import poll, utc_now
from ddptop_runner.base.errors import (
    DamagedFileError,
    DdptopError,
    LaunchInterruptedError,
    OtherSchemaError,
    UsageError,
)
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import (
    RunFolder,
    create_local_dir,
    local_dir_reason,
    require_own,
    require_own_run,
    run_folder,
    runs_dir,
    state_home,
    why_not_own,
)
from ddptop_runner.host import handover, procs, survival, tmux
from ddptop_runner.job.registry import JobView, group_of, read_job, require_own_name
from ddptop_runner.launch import git
from ddptop_runner.launch.conditions import with_conditions
from ddptop_runner.launch.gpus import choice as launch_devices
from ddptop_runner.launch.gpus import shared, usage
from ddptop_runner.launch.gpus.waiting import publish_jobs, reason_in_words, why_waiting
from ddptop_runner.launch.program import Program, name_for, program_for
from ddptop_runner.launch.request import (
    LaunchPlan,
    LaunchRequest,
    executable_of,
    folder_of,
    overrides_of,
    require_one_way,
    require_script,
    require_text,
    require_valid,
)
from ddptop_runner.model.snapshot import WaitReason
from ddptop_runner.model.spec import (
    MAX_NAME_LENGTH,
    JobOptions,
    JobSpec,
    Placement,
    Waiting,
    check_name,
    moved_into,
    write_spec,
)
from ddptop_runner.node.guardian_start import GUARDIAN_START_S, start_guardian, starting
from ddptop_runner.store.disk import is_no_room

NAMES_LOCK = ".names.lock"
"""Lock held while a launch claims a name."""
NODES_START_S = 45.0
"""How long to wait for all nodes; by then, an unreachable node has been reported."""


def prepare(request: LaunchRequest, env: Mapping[str, str]) -> LaunchPlan:
    """Check a request and decide everything.

    Args:
        request: the request.
        env: the launching shell's variables.

    Raises:
        UsageError: names what cannot be done, and what to do instead.
    """
    cwd, overrides = checked(request)
    choice = launch_devices.choose(
        request.gpus,
        {**env, **overrides},
        request.nproc,
        force=request.force,
        wait=request.may_wait or any(request.waits.values()),
        share_idle=request.share_idle,
    )
    choice = with_conditions(choice, request)
    if (request.wait_gpus or request.share_idle) and choice.queue is None:
        option = "--share-idle" if request.share_idle else "--wait-gpus"
        raise UsageError(f"{option} has no effect: this job uses no GPUs", f"remove {option}")
    if request.parallel is not None:
        choice = choice.queued()
    program = program_for(request, cwd, {**env, **overrides}, choice)
    return plan_of(request, env, cwd, overrides, choice, program)


def checked(request: LaunchRequest) -> tuple[Path, dict[str, str]]:
    """Check a request; returns its working folder and the variables of --env.

    Raises:
        UsageError: names what cannot be done, and what to do instead.
    """
    require_one_way(request)
    require_valid(request)
    there = Path(request.cwd or "")  # with --hosts, it need not exist on this machine
    is_elsewhere = bool(request.hosts) and there.is_absolute() and not there.exists()
    cwd = there if is_elsewhere else folder_of(request.cwd)
    require_text([str(cwd), str(state_home())])
    if request.kind == "script" and not is_elsewhere:
        require_script(cwd, request.target)
    if not request.is_dry and request.slurm_job is None:
        tmux.import_early()
    return cwd, overrides_of(request.env)


def plan_of(
    request: LaunchRequest,
    env: Mapping[str, str],
    cwd: Path,
    overrides: Mapping[str, str],
    choice: launch_devices.DeviceChoice,
    program: Program,
    placement: Placement | None = None,
) -> LaunchPlan:
    """Complete the plan of a job whose devices, program, and machines are decided.

    Raises:
        UsageError: the name is invalid or in use.
    """
    notes = [*choice.notes, *program.notes]
    name = name_of_job(request)
    is_held = request.slurm_job is not None  # so it ends with its allocation anyway
    survival_plan = survival.plan(survival.gather(env))
    no_tmux = tmux.why_unusable()
    if no_tmux is not None and not is_held:
        notes.append(f"{no_tmux}; the job runs as a daemon, without a tmux pane")
    if survival_plan.warning and not is_held:
        notes.append(survival_plan.warning)
    job_id = f"{name}@{os.urandom(8).hex()}"
    job_env = {**overrides, **choice.environment, "DDPTOP_JOB_ID": job_id}
    most_ranks = max((node.nproc for node in placement.nodes), default=0) if placement else 0
    job_env |= _few_threads(most_ranks or program.nproc, {**env, **overrides})
    spec = JobSpec(
        job=name,
        job_id=job_id,
        host=procs.host_name(),
        created_at=utc_now(),
        kind=program.kind,
        target=program.target,
        args=list(program.args),
        python=program.python,
        cwd=str(cwd),
        nproc=program.nproc,
        devices=choice.devices,
        queue=choice.queue,
        **{name: getattr(request, name) for name in JobOptions.__struct_fields__},
        hang_auto=request.hang_auto and request.probe,
        env_names=sorted(
            filter(handover.is_text, set(handover.of_shell(env)) - handover.SHELL_NOISE)
        ),
        env_overrides=sorted(overrides),
        backing="held" if is_held else "daemon" if no_tmux else "tmux",
        tmux_socket=None if no_tmux or is_held else tmux.socket_name(),
        launcher=program.launcher,
        placement=placement,
        git=None if request.is_dry else git.read(cwd),
    )
    return LaunchPlan(
        spec,
        job_env,
        tuple(notes),
        () if is_held else tuple(survival_plan.wrap),
        choice=choice,
        request=request,
    )


def start(plan: LaunchPlan, *, waits: bool = True) -> tuple[JobView, str | None]:
    """Create the run folder and start the guardian; returns once the guardian has the job.

    Args:
        plan: the plan.
        waits: as in `guardian_start.start_guardian`.

    Returns:
        The job, and a note if it could not be started as planned.

    Raises:
        UsageError: the name is in use, the state folder is not writable, or another job has taken
            the devices meanwhile.
        DdptopError: the guardian did not start.
    """
    for place in (state_home(), runs_dir()):
        require_own(place)
    with usage.taking(name=NAMES_LOCK):
        folder, plan, archived = _claim(plan)
    closed = require_own_run(folder)
    try:
        if local_dir_reason(folder):
            create_local_dir(folder)
        for needed in (folder.nodes_dir, folder.logs_dir, folder.evidence_dir / "stacks"):
            needed.mkdir(parents=True)
        if plan.request.work_in_run_folder:
            (folder.path / "work").mkdir()
            spec = replace(plan.spec, cwd=str(folder.path / "work"))
            plan = replace(plan, spec=spec)
        with nullcontext() if plan.choice.remake is None else usage.taking():
            plan, moved = _settle_devices(plan)
            write_spec(folder, plan.spec)
            if plan.spec.devices:
                publish_jobs()
        if (urls := plan.request.notify) is not None:
            write_atomic(folder.notify_file, "".join(f"{url}\n" for url in urls).encode())
        note = start_guardian(folder, plan.spec, plan.job_env, plan.wrap, attempt=0, waits=waits)
    except BaseException as error:
        _remove_unstarted(folder)
        if archived is not None:
            take_back(archived, folder.job)
        if isinstance(error, OSError):
            raise _unwritable(folder, error) from error
        raise
    renamed = f"the last {folder.job} is now {archived}" if archived else None
    try:
        view = _wait_for_nodes(folder) if plan.spec.placement and waits else read_job(folder)
    except KeyboardInterrupt as error:
        hint = (
            f"attach with `ddptop attach {folder.job}`, or end it with `ddptop stop {folder.job}`"
        )
        raise LaunchInterruptedError(f"{folder.job} keeps running", hint) from error
    return view, "; ".join(filter(None, [renamed, moved, note, *closed])) or None


def _wait_for_nodes(folder: RunFolder, attempt: int = 0) -> JobView:
    """Wait until each node has started its part, or waiting is pointless; returns the job.

    Raises:
        DdptopError: a node refused, and the job has failed because of it.
    """
    deadline_s = time.monotonic() + NODES_START_S
    while True:
        view = _wait_for_attempt(folder, attempt)
        assert view.snapshot is not None  # `_wait_for_attempt` has read it
        cause, nodes = view.snapshot.cause, view.snapshot.nodes
        if view.state == "failed" and cause is not None and cause.kind in ("launch", "node"):
            raise DdptopError(cause.summary.rstrip("."), f"see `ddptop events {view.job}`")
        # a node that has refused is shown as ended until the job ends because of it
        is_waiting = any(node.state not in ("running", "lost", "unreachable") for node in nodes)
        if not (view.is_live and is_waiting) or time.monotonic() > deadline_s:
            return view
        time.sleep(0.02)


def _settle_devices(plan: LaunchPlan) -> tuple[LaunchPlan, str | None]:
    """Adapt the plan to devices that other jobs have taken since, with a note if it changes."""
    old, spec = plan.choice, plan.spec
    if old.remake is None or old.waits:
        return plan, None
    new, note = old.remake(), None
    if new.queue is not None and (reason := _turn(spec)):
        new = new.queued()
        note = f"waiting {reason_in_words(reason)}"
    elif new.devices != old.devices:
        note = "; ".join(new.notes)
    if new.devices == old.devices:
        return plan, None
    job_env = {name: plan.job_env[name] for name in plan.job_env if name not in old.environment}
    spec = replace(spec, devices=new.devices, queue=new.queue)
    return replace(plan, choice=new, spec=spec, job_env=job_env | new.environment), note


def _turn(spec: JobSpec) -> WaitReason | None:
    return why_waiting(spec, usage.jobs_here(), utc_now(), shared.others(utc_now()))


def restart_ended(
    view: JobView, env: Mapping[str, str], *, force: bool = False, wait_gpus: bool = False
) -> tuple[JobView, list[str], str | None]:
    """Restart an ended job as a new attempt in the same folder.

    Args:
        view: the ended job.
        env: the calling shell's variables, which the job gets.
        force: use its devices even if they are busy.
        wait_gpus: queue the job until they are free.

    Returns:
        The restarted job, the names of variables that the job had and this shell lacks, and a note
        if it could not be started as planned.

    Raises:
        UsageError: the interpreter, the script, or the devices are unavailable.
        DdptopError: the guardian did not start.
    """
    spec = view.spec
    closed = require_own_run(view.folder)
    require_startable(view)
    tmux.import_early()
    cwd = folder_of(spec.cwd)
    if spec.kind == "script":
        require_script(cwd, spec.target)
    if spec.placement is not None:  # the interpreters are on the nodes
        placement = replace(spec.placement, force=force)
        spec = replace(spec, placement=placement)
    elif not spec.is_command:
        interpreters.require_torch(interpreters.inspect(spec.python))
    elif not os.access(spec.python, os.X_OK):
        spec = replace(spec, python=executable_of(spec.target, cwd, env))
    missing = sorted((set(spec.env_names) | set(spec.env_overrides)) - set(env))
    job_env = {name: env[name] for name in spec.env_overrides if name in env}
    job_env |= {"DDPTOP_JOB_ID": spec.job_id, **_few_threads(spec.nproc, env)}
    if spec.placement is not None:
        job_env = {**handover.carried(env), **job_env}
    last = view.snapshot.attempt if view.snapshot and view.snapshot.attempt is not None else -1
    no_tmux = tmux.why_unusable()
    spec = replace(
        spec,
        backing="daemon" if no_tmux else "tmux",
        tmux_socket=None if no_tmux else tmux.socket_name(),
    )
    folder = RunFolder(view.folder.path)
    plan = survival.plan(survival.gather(env))
    uses_gpus = bool(spec.devices) or spec.queue is not None
    # hold the lock until the new supervisor has published: only then do the devices count as taken
    with usage.taking() if uses_gpus else nullcontext():
        in_turn = spec.parallel is not None and not force
        choice = launch_devices.again(spec, env, force=force, wait=wait_gpus or in_turn)
        if in_turn:
            choice = choice.queued()
        if spec.is_queued and spec.queue is not None and choice.queue is not None:
            choice = choice.queued(**_still_waits_for(view, spec.queue))
        spec = replace(spec, devices=choice.devices, queue=choice.queue)
        job_env |= choice.environment
        if local_dir_reason(folder):
            _bring_history_back(folder)
        try:
            spec = replace(spec, host=procs.host_name())
            write_moved(folder, spec, view.spec.host)
            note = start_guardian(folder, spec, job_env, plan.wrap, attempt=last + 1)
        except OSError as error:
            raise _unwritable(folder, error) from error
        started = _wait_for_attempt(folder, last + 1)
        if uses_gpus:
            publish_jobs()
    if spec.placement is not None:
        started = _wait_for_nodes(folder, last + 1)
    return started, missing, "; ".join([*choice.notes, *filter(None, [note]), *closed]) or None


def _still_waits_for(view: JobView, queue: Waiting) -> dict[str, Any]:
    """What a job that ended in the queue waits for again; one that was lost keeps its place."""
    kept: dict[str, Any] = {"after": queue.after, "not_before": queue.not_before}
    if view.state == "lost":
        kept |= {"since": queue.since, "place": queue.place}
    return kept


def write_moved(folder: RunFolder, spec: JobSpec, before: str) -> None:
    """Write `job.json`; if the job ran on another host `before`, keep its last snapshot.

    Raises:
        OSError: the run folder is not writable.
    """
    if before != spec.host:
        with suppress(FileNotFoundError):
            folder.node_file(before).rename(folder.node_file(spec.host))
    write_spec(folder, spec)


def require_startable(view: JobView) -> None:
    """Refuse an ended job that cannot be restarted from here.

    Raises:
        UsageError: says where or how it can.
    """
    if view.spec.backing == "held":
        raise UsageError(
            f"{view.job} ran in Slurm job {view.spec.slurm_job}",
            "submit it again: ddptop launch --slurm",
        )
    if view.on_other_host:
        raise UsageError(f"{view.job} belongs to host {view.spec.host}", "restart it there")
    # sqlite3, which a launch does not need
    from ddptop_runner.store.history_reader import HistoryReader

    try:
        HistoryReader(view.folder.history_db).span()
    except OtherSchemaError as error:
        raise UsageError(error.message, error.hint) from error
    except DdptopError:
        pass  # the supervisor sets a damaged history aside


def _few_threads(nproc: int, env: Mapping[str, str]) -> dict[str, str]:
    """OMP_NUM_THREADS=1 for several ranks, as under torchrun, unless the shell sets it."""
    return {"OMP_NUM_THREADS": "1"} if nproc > 1 and "OMP_NUM_THREADS" not in env else {}


def _wait_for_attempt(folder: RunFolder, attempt: int) -> JobView:
    """Wait for the new attempt's snapshot: the previous one still shows the job as ended."""

    def begun() -> JobView | None:
        view = read_job(folder)
        is_new = view.snapshot is not None and (view.snapshot.attempt or 0) >= attempt
        return view if is_new else None

    if (view := poll(begun, GUARDIAN_START_S, 0.02)) is None:
        raise DdptopError(
            f"the supervisor for {folder.job} did not start", f"see {folder.supervisor_log}"
        )
    return view


def _bring_history_back(folder: RunFolder) -> None:
    """Move an ended job's history from the run folder to the local disk, as for live jobs."""
    stored = folder.path / "history.db"
    local = create_local_dir(folder)
    if stored.exists():
        (local / "history.db").write_bytes(stored.read_bytes())
        stored.unlink()


def name_of_job(request: LaunchRequest) -> str:
    """The requested name, else a derived one, which may still get a suffix.

    Raises:
        UsageError: the name is invalid or in use.
    """
    if request.name is None:
        return name_for(request)
    require_free(check_name(request.name))
    return request.name


def _claim(plan: LaunchPlan) -> tuple[RunFolder, LaunchPlan, str | None]:
    """Create the run folder, which claims the name; a derived name gets the first free suffix.

    The third value is the new name of the ended job that had this name, if there was one.
    """
    base, archived, is_derived = plan.spec.job, None, plan.request.name is None
    if not is_derived and os.path.lexists(run_folder(base).path):
        try:
            archived = archive(base)
        except OSError as error:
            raise _unwritable(run_folder(base), error) from error
        plan = replace(plan, spec=moved_into(plan.spec, run_folder(archived), base))
    try:
        runs_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(run_folder(base), error) from error
    for number in range(1, 10_000):
        name = base if number == 1 else f"{base}-{number}"
        folder = run_folder(name)
        if is_derived and group_of(name):
            continue
        try:
            folder.path.mkdir(mode=0o700)
        except FileExistsError:
            if is_derived:
                continue
            raise UsageError(f"the name {name!r} is in use", "choose another --name") from None
        except OSError as error:
            raise _unwritable(folder, error) from error
        if number == 1:
            return folder, plan, archived
        job_id = f"{name}@{plan.spec.job_id.partition('@')[2]}"
        spec = replace(plan.spec, job=name, job_id=job_id)
        job_env = {**plan.job_env, "DDPTOP_JOB_ID": job_id}
        return folder, replace(plan, spec=spec, job_env=job_env), None
    raise UsageError(f"too many jobs are named {base}", "remove some: ddptop rm JOB")


def _unwritable(folder: RunFolder, error: OSError) -> UsageError:
    remedy = "free some space" if is_no_room(error) else "set DDPTOP_HOME to a writable directory"
    return UsageError(f"the run folder {folder.path} is not writable ({error.strerror})", remedy)


def _remove_unstarted(folder: RunFolder) -> None:
    if folder.live_dir != folder.path:
        shutil.rmtree(folder.live_dir, ignore_errors=True)
    shutil.rmtree(folder.path, ignore_errors=True)


# --- the name of an ended job --------------------------------------------------------------------
#
# It becomes free by renaming that job. What only a taken name needs is imported then: every launch
# would wait for it.


def require_free(name: str) -> None:
    """Refuse a name that a new job cannot have: it must be unused or an ended job's.

    Raises:
        UsageError: names what uses it, and what to do.
    """
    folder, elsewhere = run_folder(name), "choose another name"
    if not os.path.lexists(folder.path):
        if group_of(name):
            raise UsageError(f"the name {name!r} is in use by a sweep", elsewhere)
        return
    from ddptop_runner.jobs.slurm_queue import as_queued

    try:
        view = require_own_name(read_job(folder))
    except DamagedFileError:
        raise UsageError(
            f"the name {name!r} is in use", f"{elsewhere}, or remove that job: ddptop rm {name}"
        ) from None
    view = as_queued(view)
    if view.is_live:
        raise UsageError(
            f"the name {name!r} is in use: that job is {view.state}",
            f"{elsewhere}, or stop that job: ddptop stop {name}",
        )
    if (problem := why_not_own(folder)) is not None:
        raise UsageError(f"the name {name!r} is in use ({problem})", elsewhere)


def archive(name: str) -> str:
    """Rename an ended job to the first free `<name>-<n>`; returns the new name.

    The new name is written to `job.json` first but takes effect when the folder is renamed, so
    readers always see a complete job, under one of its names. The caller holds `NAMES_LOCK`.

    Raises:
        UsageError: as `require_free`, or the job is being restarted.
        OSError: the folder cannot be renamed.
    """
    from ddptop_runner.jobs.commands import wait_for_guards
    from ddptop_runner.node.keeper import bring_home

    old = run_folder(name)
    require_free(name)
    with starting(old, GUARDIAN_START_S) as had:
        require_free(name)
        view = read_job(old)
        wait_for_guards(view)
        bring_home(old)
        if not had or old.live_dir != old.path:
            raise UsageError(f"the name {name!r} is in use", "choose another name, or try again")
        new = _claim_next(name)
        try:
            write_spec(old, replace(view.spec, archived_as=new.job))
            old.path.rename(new.path)
        except BaseException:
            new.path.rmdir()
            raise
    _follow(old, new)
    return new.job


def take_back(archived: str, name: str) -> None:
    """Give an ended job its old name back, because the launch that took it failed."""
    new, old = run_folder(archived), run_folder(name)
    with suppress(OSError, DamagedFileError):
        if not read_job(new).is_live:
            new.path.rename(old.path)
            _follow(new, old)


def _claim_next(name: str) -> RunFolder:
    number = 1
    while True:
        suffix = f"-{number}"
        folder = run_folder(name[: MAX_NAME_LENGTH - len(suffix)] + suffix)
        with suppress(FileExistsError):
            folder.path.mkdir(mode=0o700)
            return folder
        number += 1


def _follow(old: RunFolder, new: RunFolder) -> None:
    """Update paths and names in the job's files; readers cope if this fails."""
    import sqlite3

    from ddptop_runner.store.history import move_paths

    before, after = f"{old.path}/", f"{new.path}/"
    for file in new.nodes_dir.glob("*.json"):
        with suppress(OSError):
            data = file.read_bytes().replace(before.encode(), after.encode())
            write_atomic(
                file, data.replace(f'"job":"{old.job}"'.encode(), f'"job":"{new.job}"'.encode())
            )
    with suppress(OSError, sqlite3.Error):
        move_paths(new.history_db, before, after)
