"""Kill the supervisor and the agent repeatedly during one job, and check whether anything is lost.

    python benchmarks/guards_killed.py [--supervisors 10] [--agents 3] [--guardians 0] [--json]

After each killed agent, one rank fails, so that the next attempt starts a new agent. Supervisors
are killed throughout. The steps that each rank recorded itself are compared with those in the job's
history, and the exit of each rank is looked up in the job's events.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from common import Home

TRAINER = """
import os, sys, time
import ddptop
folder, failures = sys.argv[1], int(sys.argv[2])
rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
steps = 0
while not os.path.exists(f"{folder}/over-{attempt}"):
    steps += 1
    ddptop.report(loss=1 / steps)
    with open(f"{folder}/steps-{attempt}-{rank}", "w") as file:
        file.write(str(steps))
    time.sleep(0.03)
time.sleep(1.0)  # so that the last steps are reported before the exit below
if attempt < failures:
    if rank == "1":
        os._exit(7)
    time.sleep(600)
"""
PATIENCE_S = 120.0
POLL_S = 0.05


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return the first truthy result of `condition`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {PATIENCE_S:g} s waiting for {what}")
        time.sleep(POLL_S)
    return answer


class Run:
    """One job whose guardian, supervisor, and agent are killed."""

    def __init__(self, home: Home, agents: int) -> None:
        self.home = home
        self.own = home.path / "own"
        self.own.mkdir()
        script = home.path / "guards.py"
        script.write_text(TRAINER, encoding="utf-8")
        home.ddptop(
            *["launch", "-d", "--nproc", "2", "--name", "guards"],
            *["--max-restarts", str(max(1, agents)), str(script), str(self.own), str(agents)],
        )
        self.folder = home.path / "home/runs/guards"

    def node(self) -> dict[str, Any]:
        """Return the current snapshot, or {} before there is one."""
        files = list((self.folder / "nodes").glob("*.json"))
        node: dict[str, Any] = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
        return node

    def pid(self, role: str) -> int | None:
        """Return the pid of the guardian, supervisor, or agent."""
        process = self.node().get(role)
        return None if process is None else int(process["pid"])

    def own_steps(self, attempt: int, rank: int) -> int:
        """Return the number of steps that the script recorded."""
        try:
            return int((self.own / f"steps-{attempt}-{rank}").read_text(encoding="utf-8") or 0)
        except OSError:
            return 0

    def trains(self, attempt: int) -> bool:
        """Return whether the snapshot shows steps of this attempt on all ranks."""
        node = self.node()
        return (
            node.get("attempt") == attempt
            and node["state"] == "running"
            and all((rank["step"] or 0) > 5 for rank in node["ranks"])
        )

    def kill(self, role: str, attempt: int) -> float:
        """Kill a process; return the seconds until its replacement runs or its exit is reported."""
        pid = wait_for(lambda: self.pid(role), f"the {role}")
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        if role == "agent":
            wait_for(lambda: self.pid("agent") is None, "the agent's exit to be reported")
            return time.monotonic() - killed
        if role == "guardian":
            self.home.ddptop("ls")
        wait_for(lambda: self.pid(role) not in (None, pid), f"a new {role}")
        came_back = time.monotonic() - killed
        before = self.own_steps(attempt, 0)
        wait_for(
            lambda: self.node()["ranks"] and (self.node()["ranks"][0]["step"] or 0) > before,
            "new steps to be reported",
        )
        return came_back

    def finish_attempt(self, attempt: int) -> None:
        """Let rank 1 fail, or in the last attempt, let all ranks finish."""
        (self.own / f"over-{attempt}").touch()


def go(run: Run, supervisors: int, agents: int, guardians: int) -> list[float]:
    """Run the job to its end; return how long each new supervisor took to start."""
    attempts = agents + 1
    took = []
    for attempt in range(attempts):
        wait_for(lambda attempt=attempt: run.trains(attempt), f"steps of attempt {attempt}")
        share = supervisors // attempts + (attempt < supervisors % attempts)
        for number in range(share):
            if number == share // 2 and attempt < agents:
                run.kill("agent", attempt)
            if attempt < guardians:
                run.kill("guardian", attempt)
                guardians -= 1
            took.append(run.kill("supervisor", attempt))
        if not share and attempt < agents:
            run.kill("agent", attempt)
        run.finish_attempt(attempt)
    run.home.ddptop("wait", "guards", "--timeout", str(PATIENCE_S), check=False)
    return took


def judge(run: Run, attempts: int) -> dict[str, Any]:
    """Return what was recorded, and what was lost."""
    with sqlite3.connect(run.folder / "history.db") as db:
        rows = db.execute("SELECT attempt, rank, max(step) FROM rank_1s GROUP BY attempt, rank")
        recorded = {(attempt, rank): int(step or 0) for attempt, rank, step in rows}
    lines = run.home.ddptop("events", "guards", "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    exits = {
        (event["attempt"], event["rank"]): event["signal"] or event["exit_code"]
        for event in events
        if event["type"] == "rank_exited"
    }
    every = [(attempt, rank) for attempt in range(attempts) for rank in range(2)]
    own_steps = {key: run.own_steps(*key) for key in every}
    types = [event["type"] for event in events]
    return {
        "state": run.node()["state"],
        "own_steps": sum(own_steps.values()),
        "lost_steps": sum(abs(own_steps[key] - recorded.get(key, 0)) for key in every),
        "exits": {f"{attempt}/{rank}": exits.get((attempt, rank)) for attempt, rank in every},
        "unknown_exits": sum(exits.get(key) is None for key in every),
        "attempts": types.count("attempt_started"),
        "failures_reported": types.count("failure"),
        "restarts_reported": types.count("group_restart"),
        "supervisors_reported": types.count("supervisor_restarted"),
    }


def main() -> None:
    """Run the job, and print the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--supervisors", type=int, default=10)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--guardians", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    home = Home()
    run = Run(home, options.agents)
    try:
        took = go(run, options.supervisors, options.agents, options.guardians)
        found = judge(run, options.agents + 1)
    finally:
        home.ddptop("kill", "guards", check=False)
        subprocess.run(
            ["tmux", "-L", home.env["DDPTOP_TMUX_SOCKET"], "kill-server"],
            capture_output=True,
            check=False,
        )
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"{options.supervisors} supervisors, {options.agents} agents and {options.guardians} "
        f"guardians killed in one job of {found['attempts']} attempts: state {found['state']}, "
        f"{found['lost_steps']} of {found['own_steps']} steps lost, "
        f"{found['unknown_exits']} of {len(found['exits'])} exits unknown ({found['exits']})"
    )
    print(
        f"reported: {found['failures_reported']} failures, {found['restarts_reported']} restarts, "
        f"{found['supervisors_reported']} new supervisors; each took "
        f"{min(took):.1f} to {max(took):.1f} s to start"
    )


if __name__ == "__main__":
    sys.exit(main())
