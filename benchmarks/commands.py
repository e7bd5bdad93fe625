"""Measure instructions and wall time of short commands, optionally against another source tree.

    python benchmarks/commands.py [--old PATH] [--runs 30]

The commands see three ended jobs with two ranks each, and the devices of this machine. If valgrind
is installed, it counts the instructions of the whole process; that count does not depend on the
load of the machine. Wall times are medians of alternating runs and are meaningful only on an
otherwise idle machine. `--old` is the root of another checkout.
"""

from __future__ import annotations

import argparse
import compileall
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import Home

HERE = Path(__file__).parents[1]
SCRIPT = """
import ddptop
for step in range(20):
    ddptop.report(loss=1 / (step + 1), step=step, total=20)
"""
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "ddptop ls": ["-m", "ddptop", "ls"],
    "ddptop status JOB": ["-m", "ddptop", "status", "job-0"],
    "ddptop gpus": ["-m", "ddptop", "gpus"],
    "ddptop events JOB": ["-m", "ddptop", "events", "job-0"],
    "ddptop logs JOB": ["-m", "ddptop", "logs", "job-0"],
    "ddptop --help": ["-m", "ddptop", "--help"],
}
CACHEGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
COUNTED = re.compile(r"I +refs: +([\d,]+)")


def run(arguments: list[str], env: dict[str, str], *prefix: str) -> str:
    """Run Python from `/`, so that no checkout is on its path; return stderr."""
    command = [*prefix, sys.executable, *arguments]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=True)
    return done.stderr


def instructions(arguments: list[str], env: dict[str, str]) -> int:
    """Return the instructions of the whole process, without its children."""
    counted = COUNTED.findall(run(arguments, {**env, "PYTHONHASHSEED": "0"}, *CACHEGRIND))
    return int(counted[-1].replace(",", ""))


def wall_s(arguments: list[str], env: dict[str, str]) -> float:
    """Return the wall time of the process in seconds."""
    began = time.perf_counter()
    run(arguments, env)
    return time.perf_counter() - began


def main() -> None:
    """Create the jobs, then measure and print each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--runs", type=int, default=30)
    options = parser.parse_args()
    home = Home()
    home.script.write_text(SCRIPT, encoding="utf-8")
    for number in range(3):
        name = f"job-{number}"
        home.ddptop("launch", "-d", "--nproc", "2", "--name", name, str(home.script))
        home.ddptop("wait", name)
    home.env.pop("PYTHONDONTWRITEBYTECODE", None)
    trees = {"this tree": HERE}
    if options.old is not None:
        trees["old"] = options.old.resolve()
    envs = {}
    for tree, root in trees.items():
        for package in (root / "ddptop", root / "runner"):  # as pip does on install
            compileall.compile_dir(package, quiet=2)
        envs[tree] = {**home.env, "PYTHONPATH": f"{root}:{root / 'runner'}"}
    for name, arguments in COMMANDS.items():
        times: dict[str, list[float]] = {tree: [] for tree in envs}
        for _ in range(options.runs):
            for tree, env in envs.items():
                times[tree].append(wall_s(arguments, env))
        for tree, env in envs.items():
            text = f"{name:18} {tree:9} {1000 * statistics.median(times[tree]):6.1f} ms"
            if shutil.which("valgrind"):
                text += f" {instructions(arguments, env) / 1e6:6.1f} million instructions"
            print(text, flush=True)


if __name__ == "__main__":
    main()
