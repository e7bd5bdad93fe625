"""`launch --array`: real jobs as one group."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

pytestmark = pytest.mark.tmux

GATED = ["--", "sh", "-c", "while [ ! -e go ]; do sleep 0.1; done; test {n} != 3"]
"""The third fails."""
STAY = ["--", "sh", "-c", "echo {n} sees $CUDA_VISIBLE_DEVICES; exec sleep 600"]


@pytest.fixture
def rows(ddptop_cli):
    def read() -> dict[str, dict[str, Any]]:
        return {job["job"]: job for job in json.loads(ddptop_cli("ls", "--json").stdout)["jobs"]}

    return read


def test_sweep_with_a_failing_job_is_stopped_restarted_and_removed(
    ddptop_cli, rows, wait_until, tmp_path
):
    def states() -> Counter[str]:
        return Counter(row["state"] for row in rows().values())

    options = ["--cwd", str(tmp_path), "--gpus", "none", "--max-restarts", "0"]
    launched = ddptop_cli(
        "launch", "-d", *options, "--name", "s", "--array", "n=1-4", "--parallel", "2", *GATED
    )
    assert (launched.returncode, launched.stdout) == (0, "s\n"), launched.stderr
    assert "launched 4 jobs as s, 4 of them queued; to stop them, run ddptop stop s" in (
        launched.stderr
    )
    assert {name: (row["group"], row["array"]) for name, row in rows().items()} == {
        f"s-n{n}": ("s", {"n": str(n)}) for n in range(1, 5)
    }
    wait_until(lambda: states()["queued"] == 2)
    assert {name for name, row in rows().items() if row["state"] != "queued"} == {"s-n1", "s-n2"}
    waits = json.loads(ddptop_cli("status", "s-n4", "--json").stdout)["alerts"][0]
    assert waits["message"].startswith("waiting for a job of its sweep to end: s-n")
    assert waits["waits_for"]["kind"] == "group"

    refused = ddptop_cli("rm", "s")
    assert refused.returncode == 2 and len(rows()) == 4
    assert ddptop_cli("stop", "s", "--grace", "5").returncode == 0
    assert states() == {"stopped": 4}

    again = ddptop_cli("restart", "s")
    assert again.returncode == 0, again.stderr
    wait_until(lambda: states()["queued"] == 2)
    (tmp_path / "go").touch()
    assert ddptop_cli("wait", "s", "--timeout", "90").returncode == 1
    assert states() == {"finished": 3, "failed": 1}
    assert rows()["s-n3"]["state"] == "failed"

    before = rows()
    assert "s-n3 is queued" in ddptop_cli("restart", "s").stderr
    assert ddptop_cli("wait", "s", "--timeout", "60").returncode == 1
    after = rows()
    changed = {n for n in before if before[n]["ended_at"] != after[n]["ended_at"]}
    assert changed == {"s-n3"}
    shown = ddptop_cli("ls").stdout.splitlines()
    assert len(shown) == 2
    assert "  1 failed, 3 finished; n3: the command exited with status 1  " in shown[1]
    assert ddptop_cli("rm", "s").returncode == 0 and rows() == {}


def test_nothing_is_launched_if_one_name_is_in_use(ddptop_cli, rows, launch_command):
    launch_command(["sleep", "600"], "--name", "w-n2")
    refused = ddptop_cli("launch", "-d", "--name", "w", "--array", "n=1-3", *STAY)
    assert refused.returncode == 2
    assert "the name 'w-n2' is in use: that job is" in refused.stderr
    assert set(rows()) == {"w-n2"}
    assert ddptop_cli("kill", "w-n2").returncode == 0


def test_each_job_gets_its_own_device_or_waits(stub, ddptop_cli, rows, wait_until):
    launched = ddptop_cli(
        "launch", "-d", "--name", "g", "--gpus", "auto:1", "--array", "n=1-5", *STAY
    )
    assert "launched 5 jobs as g, 1 of them queued" in launched.stderr, launched.stderr
    wait_until(
        lambda: {name for name, row in rows().items() if row["state"] == "queued"} == {"g-n5"}
    )
    seen = {ddptop_cli("logs", f"g-n{n}").stdout.split()[-1] for n in range(1, 5)}
    assert seen == {"0", "1", "2", "3"}
    assert ddptop_cli("kill", "g").returncode == 0
    assert {row["state"] for row in rows().values()} == {"stopped"}
    refused = ddptop_cli("launch", "-d", "--name", "g", "--", "true")
    assert "the name 'g' is in use by a sweep" in refused.stderr
