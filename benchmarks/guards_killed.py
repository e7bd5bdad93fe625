"""Kill the supervisor and the agent again and again during one run: is anything lost?

    python benchmarks/guards_killed.py [--supervisors 10] [--agents 3] [--guardians 0] [--json]

Each agent that is killed is followed by a failure of one rank, so that the next attempt gets a new
agent. Supervisors are killed all along. Compared are the steps that each rank wrote down itself
with those in the job's history, and how each rank ended with what the job's events say.
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
time.sleep(1.0)  # what is killed below has told its steps
if attempt < failures:
    if rank == "1":
        os._exit(7)
    time.sleep(600)
"""
PATIENCE_S = 120.0
POLL_S = 0.05


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first truthy answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(POLL_S)
    return answer


class Run:
    """One job whose guards are killed."""

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
        """The snapshot."""
        files = list((self.folder / "nodes").glob("*.json"))
        node: dict[str, Any] = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
        return node

    def pid(self, role: str) -> int | None:
        """Of guardian, supervisor or agent."""
        process = self.node().get(role)
        return None if process is None else int(process["pid"])

    def own_steps(self, attempt: int, rank: int) -> int:
        """What the script has written down."""
        try:
            return int((self.own / f"steps-{attempt}-{rank}").read_text(encoding="utf-8") or 0)
        except OSError:
            return 0

    def trains(self, attempt: int) -> bool:
        """Whether the attempt is seen to take steps."""
        node = self.node()
        return (
            node.get("attempt") == attempt
            and node["state"] == "running"
            and all((rank["step"] or 0) > 5 for rank in node["ranks"])
        )

    def kill(self, role: str, attempt: int) -> float:
        """Kill a guard, wait for what has to come then; how long that took."""
        pid = wait_for(lambda: self.pid(role), role)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        if role == "agent":
            wait_for(lambda: self.pid("agent") is None, "the agent's end to be seen")
            return time.monotonic() - killed
        if role == "guardian":
            self.home.ddptop("ls")
        wait_for(lambda: self.pid(role) not in (None, pid), f"another {role}")
        came_back = time.monotonic() - killed
        before = self.own_steps(attempt, 0)
        wait_for(
            lambda: self.node()["ranks"] and (self.node()["ranks"][0]["step"] or 0) > before,
            "steps heard again",
        )
        return came_back

    def finish_attempt(self, attempt: int) -> None:
        """Let rank 1 fail, or the whole group finish."""
        (self.own / f"over-{attempt}").touch()


def go(run: Run, supervisors: int, agents: int, guardians: int) -> list[float]:
    """The run; how long each new supervisor took to come up."""
    attempts = agents + 1
    took = []
    for attempt in range(attempts):
        wait_for(lambda attempt=attempt: run.trains(attempt), f"attempt {attempt}")
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
    """What was lost."""
    with sqlite3.connect(run.folder / "history.db") as db:
        rows = db.execute("SELECT attempt, rank, max(step) FROM rank_1s GROUP BY attempt, rank")
        recorded = {(attempt, rank): int(step or 0) for attempt, rank, step in rows}
    lines = run.home.ddptop("events", "guards", "--json").stdout.splitlines()
    told = [json.loads(line) for line in lines]
    exits = {
        (event["attempt"], event["rank"]): event["signal"] or event["exit_code"]
        for event in told
        if event["type"] == "rank_exited"
    }
    every = [(attempt, rank) for attempt in range(attempts) for rank in range(2)]
    own = {key: run.own_steps(*key) for key in every}
    types = [event["type"] for event in told]
    return {
        "state": run.node()["state"],
        "own_steps": sum(own.values()),
        "lost_steps": sum(abs(own[key] - recorded.get(key, 0)) for key in every),
        "exits": {f"{attempt}/{rank}": exits.get((attempt, rank)) for attempt, rank in every},
        "unknown_exits": sum(exits.get(key) is None for key in every),
        "attempts": types.count("attempt_started"),
        "failures_told": types.count("failure"),
        "restarts_told": types.count("group_restart"),
        "supervisors_told": types.count("supervisor_restarted"),
    }


def main() -> None:
    """Run, compare, print."""
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
        f"guardians killed in one run of {found['attempts']} attempts: it {found['state']}, "
        f"{found['lost_steps']} of {found['own_steps']} steps lost, "
        f"{found['unknown_exits']} of {len(found['exits'])} exits unknown ({found['exits']})"
    )
    print(
        f"told: {found['failures_told']} failures, {found['restarts_told']} restarts, "
        f"{found['supervisors_told']} new supervisors; a new one took "
        f"{min(took):.1f} to {max(took):.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
