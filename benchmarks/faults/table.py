"""The fault table: every fault on a real job, under ddptop and other launchers, with one script.

    python benchmarks/faults/table.py [--runs 5] [--launchers ddptop,torchrun,ft_launcher]
        [--faults kill,raise] [--ft-python VENV/bin/python] [--results FILE] [--write]

CPU, gloo, two ranks; three where a hang has to be told from those that wait. Each run has a state
folder and a tmux server of its own. Results go to a file, one JSON object a line; a launcher's rows
replace its older ones. --write puts the table into docs/resilience.md. `ft_launcher` comes from
`pip install nvidia-resiliency-ext` in an environment of its own, with the same torch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # `tests` is not installed

from benchmarks.faults import places
from benchmarks.faults.kinds import BY_NAME, Fault
from benchmarks.faults.record import read_record
from benchmarks.faults.results import (
    ROOT,
    STEPS,
    Result,
    measure,
    read_results,
    table,
    write_document,
    write_results,
)
from benchmarks.faults.trial import Trial

from ddptop_runner.base.paths import run_folder

TRAIN = ROOT / "ddptop" / "demo" / "train.py"
SCRIPT = [
    *["--layers", "1", "--width", "64", "--context", "32", "--batch-size", "4"],
    *["--steps", str(STEPS), "--pause", "0.02", "--save-every", "10"],
    *["--record", "record", "--out", "out", "--fault-file", "fault"],
]
PG_TIMEOUT_S = 8
"""Without it, a hang under the other launchers lasts half an hour."""
READY_STEPS = 5
READY_S = 120.0
END_S = 100.0
"""From the fault to the end of the job."""
RUN_S = 420.0
RESTARTS = 3
ELSEWHERE = (
    *("kill", "stop", "hang-python", "hang-collective", "raise", "exit-0", "exit-code", "oom"),
    *("nan", "agent-killed", "tmux-killed", "terminal-closed"),
)
"""Faults that apply to any launcher; `agent-killed` is SIGKILL to the launcher itself."""
NOBODY = ("stop", "nan", "agent-killed", "tmux-killed", "terminal-closed")
"""Faults after which other launchers are not expected to name a rank."""


def world_of(fault: Fault) -> int:
    """The number of ranks."""
    return 3 if fault.name in ("hang-python", "hang-collective", "kill") else 2


def victim_of(fault: Fault, run: int) -> int:
    """The rank with the fault, which differs between runs."""
    return 1 if fault.name == "gpu-lost" else (run + 1) % world_of(fault)


# --- under ddptop --------------------------------------------------------------------------------


def run_ddptop(fault: Fault, run: int, folder: Path) -> Result:
    """One job and one fault, compared with everything expected."""
    result = Result("ddptop", fault.name, run)
    home = folder / "home"
    home.mkdir()
    socket = f"faults-{uuid.uuid4().hex[:8]}"
    os.environ.update(DDPTOP_HOME=str(home), DDPTOP_TMUX_SOCKET=socket)
    ranks = ["--nproc", str(world_of(fault))]
    if fault.place == "device":
        os.environ.update(places.stand_in_driver(folder / "driver", 2))
        ranks = ["--gpus", "0,1"]
    if fault.place == "disk":
        places.mount_small_disk(home)
    verb = [sys.executable, "-m", "ddptop"]
    job = None
    try:
        launched = subprocess.run(
            [
                *[*verb, "launch", "-d", *ranks, "--max-restarts", str(RESTARTS), *fault.flags()],
                *["--cwd", str(folder), str(TRAIN), *SCRIPT],
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        job = launched.stdout.strip()
        trial = Trial(run_folder(job))
        outcome = trial.run(fault, victim_of(fault, run))
        result.complaints = [*outcome.complaints, *trial.end(END_S, [outcome])]
        result.left = sum("left running" in one for one in result.complaints)
        if fault.names_rank:
            result.named = not any(
                "names rank" in one or "no event" in one for one in result.complaints
            )
        measure(result, read_record(folder / "record"), world_of(fault), outcome.committed_at)
        if not result.finished:
            result.complaints.append("the last step was not taken")
    finally:
        if job is not None:
            subprocess.run([*verb, "kill", job], capture_output=True, check=False)
        subprocess.run(["tmux", "-L", socket, "kill-server"], capture_output=True, check=False)
        if fault.place == "disk":
            places.unmount(home)
    return result


# --- under other launchers -----------------------------------------------------------------------


def command_of(launcher: str, world: int, python: str, restarts: int = RESTARTS) -> list[str]:
    """The command that starts the launcher on one machine."""
    common = ["--nnodes", "1", "--nproc-per-node", str(world), "--max-restarts", str(restarts)]
    if launcher == "torchrun":
        return [python, "-m", "torch.distributed.run", "--standalone", *common]
    return [
        *[python, str(Path(python).with_name("ft_launcher")), "--rdzv-backend", "c10d"],
        *["--rdzv-endpoint", "127.0.0.1:0", *common],
    ]


def processes_with(mark: str) -> list[psutil.Process]:
    """Processes with the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FAULTS_MARK") == mark and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


def pid_of_rank(mark: str, rank: int) -> int | None:
    """The process that runs the script as that rank."""
    for process in processes_with(mark):
        try:
            runs_script = str(TRAIN) in process.cmdline()[:3]
            if runs_script and process.environ().get("RANK") == str(rank):
                return process.pid
        except psutil.Error:
            continue
    return None


def named_rank(said: str) -> int | None:
    """The rank that torch's agent blames: the root cause in its report, or its first failure
    message.
    """
    report = re.search(r"Root Cause.*?rank\s*:\s*(\d+)", said, re.DOTALL)
    first = re.search(r"failed \(exitcode: -?\d+\) local_rank: (\d+)", said)
    found = first or report
    return None if found is None else int(found[1])


def wait_for(condition: Callable[[], Any], timeout_s: float) -> Any:
    """The first truthy result, or the last one."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answer


def run_elsewhere(launcher: str, fault: Fault, run: int, folder: Path, python: str) -> Result:
    """The same script and fault under another launcher, in a tmux pane as users run it."""
    result = Result(launcher, fault.name, run)
    world, victim = world_of(fault), victim_of(fault, run)
    mark = os.environ["FAULTS_MARK"]
    socket, output = f"faults-{mark[:8]}", folder / "output"
    # the launcher is the pane's own process, and its output goes to a file
    inner = [*command_of(launcher, world, python), str(TRAIN), *SCRIPT]
    inner += ["--pg-timeout", str(PG_TIMEOUT_S)]
    words = " ".join(inner)
    tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
    subprocess.run(
        [*tmux, "new-session", "-d", "-c", str(folder), f"exec {words} >{output} 2>&1"], check=True
    )
    try:
        pane = subprocess.run(
            [*tmux, "list-panes", "-a", "-F", "#{pane_pid}"],
            capture_output=True,
            text=True,
            check=True,
        )
        pid = int(pane.stdout)
        record = folder / "record"

        def trains() -> bool:
            steps = read_record(record)
            return len(steps) == world and all(len(one) >= READY_STEPS for one in steps.values())

        if not wait_for(trains, READY_S):
            result.complaints.append(f"did not train: {output.read_text(errors='replace')[-300:]}")
            return result
        at = time.time()
        _commit_elsewhere(fault, mark, victim, pid, socket, folder)

        def over() -> bool:
            alive = [one for one in processes_with(mark) if _runs(one)]
            return not any("tmux" not in one.name() for one in alive)

        ended = wait_for(over, END_S)
        measure(result, read_record(record), world, at)
        left = [one for one in processes_with(mark) if "tmux" not in one.name() and _runs(one)]
        if any(one.pid == pid for one in left):
            result.complaints.append(f"not over after {END_S:.0f} s")
        elif not ended:
            result.left = len(left)
        if not result.finished:
            result.complaints.append("the last step was not taken")
        if fault.name not in NOBODY:
            result.named = named_rank(output.read_text(errors="replace")) == victim
    finally:
        end_all_with(mark)
    return result


def end_all_with(mark: str) -> None:
    """Kill every process with the mark: all of one run, and nothing else."""
    for process in processes_with(mark):
        try:
            process.kill()
        except psutil.Error:
            continue


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _commit_elsewhere(
    fault: Fault, mark: str, victim: int, launcher: int, socket: str, folder: Path
) -> None:
    rank = pid_of_rank(mark, victim)
    if fault.script_word is not None:
        (folder / "fault.new").write_text(fault.script_word)
        (folder / "fault.new").replace(folder / f"fault.{victim}")
    elif fault.name == "kill" and rank is not None:
        os.kill(rank, signal.SIGKILL)
    elif fault.name == "stop" and rank is not None:
        os.kill(rank, signal.SIGSTOP)
        time.sleep(fault.hold_s)
        os.kill(rank, signal.SIGCONT)
    elif fault.name == "agent-killed":
        os.kill(launcher, signal.SIGKILL)
    elif fault.name == "terminal-closed":
        os.kill(launcher, signal.SIGHUP)
    elif fault.name == "tmux-killed":
        subprocess.run(["tmux", "-L", socket, "kill-server"], check=False)


# --- all of them ---------------------------------------------------------------------------------


def one_run(options: argparse.Namespace) -> None:
    """A single run in this process; prints its result as JSON."""
    launcher, name, run = options.one.split(",")
    with tempfile.TemporaryDirectory(prefix="ddptop-faults-", ignore_cleanup_errors=True) as folder:
        if launcher == "ddptop":
            result = run_ddptop(BY_NAME[name], int(run), Path(folder))
        else:
            python = options.ft_python if launcher == "ft_launcher" else sys.executable
            result = run_elsewhere(launcher, BY_NAME[name], int(run), Path(folder), python)
    print(json.dumps(vars(result)))


def spawn(options: argparse.Namespace, launcher: str, fault: Fault, run: int) -> Result:
    """The same in a separate process, with its own environment and working folder."""
    command = [sys.executable, __file__, "--one", f"{launcher},{fault.name},{run}"]
    if options.ft_python:
        command += ["--ft-python", options.ft_python]
    mark = uuid.uuid4().hex
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FAULTS_MARK": mark}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=RUN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(launcher, fault.name, run, complaints=[f"not over after {RUN_S:.0f} s"])
    finally:
        end_all_with(mark)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Result(launcher, fault.name, run, complaints=[f"the run broke: {words}"])
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run the requested faults, print the table, and store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first-run", type=int, default=0, help="keep the runs before this one")
    parser.add_argument("--launchers", default="ddptop,torchrun")
    parser.add_argument("--faults", default=",".join(BY_NAME))
    parser.add_argument("--ft-python", help="interpreter of an environment with ft_launcher")
    parser.add_argument(
        "--results", type=Path, default=Path(tempfile.gettempdir()) / "faults.jsonl"
    )
    parser.add_argument("--write", action="store_true", help="into docs/resilience.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_run(options)
        return
    results = read_results(options.results)
    names = [name for name in options.faults.split(",") if name]
    for launcher in filter(None, options.launchers.split(",")):
        if launcher == "ft_launcher" and not options.ft_python:
            raise SystemExit("ft_launcher needs --ft-python, the interpreter of its environment")
        for name in names:
            if launcher != "ddptop" and name not in ELSEWHERE:
                continue
            runs = range(options.first_run, options.first_run + options.runs)
            results = [
                r
                for r in results
                if (r.launcher, r.fault) != (launcher, name) or r.run < options.first_run
            ]
            for run in runs:
                result = spawn(options, launcher, BY_NAME[name], run)
                results.append(result)
                pause = "" if result.pause_s is None else f"{result.pause_s:.1f} s"
                said = "; ".join(result.complaints)[:200] or "as expected"
                print(f"{launcher:12} {name:18} {run}  {pause:8} {said}", flush=True)
            write_results(options.results, results)
    rows = table(results)
    print("\n".join(rows))
    if options.write:
        write_document(rows)


if __name__ == "__main__":
    main()
