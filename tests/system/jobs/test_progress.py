"""Losses, steps, totals, and ETAs of real jobs without a probe, from their output."""

from __future__ import annotations

import json
import os
import signal

import pytest

from ddptop_runner.reading.progress.rank_view import PATIENCE_S

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

BAR = """
import os, sys, time
rank, total, step = os.environ["RANK"], 4000, 0
while step < total:
    step = min(total, step + 7) if not os.path.exists(sys.argv[0] + ".end") else total
    line = f"{100 * step // total:3d}%|##  | {step}/{total} [00:10<01:20, 70.0it/s, loss=2.{rank}]"
    sys.stderr.write("\\r" + line)
    sys.stderr.flush()
    time.sleep(0.1)
sys.stderr.write("\\n")
"""
ISOLATED = """
import os, sys, time
if not sys.flags.isolated:  # as `python -I` is started: the probe does not reach it
    os.execv(sys.executable, [sys.executable, "-I", *sys.argv])
for step in range(1, 4001):
    print(f"Epoch 2/5 step {step}/4000 loss {3 - step / 8000:.4f}", flush=True)
    time.sleep(0.1)
"""


def test_jobs_without_a_probe_are_read_from_their_output(
    launch_script, wait_until, ddptop_cli, tmp_path
):
    bar = launch_script(BAR, "--no-probe", name="bar")
    isolated = launch_script(ISOLATED, name="isolated", nproc=1)

    def known(job) -> bool:
        progress = job.status()["progress"]
        return progress is not None and progress["eta_s"] is not None

    wait_until(lambda: known(bar) and all(rank["loss"] for rank in bar.status()["ranks"]))
    status = bar.status()
    assert [rank["loss"] for rank in status["ranks"]] == [2.0, 2.1]
    for rank in status["ranks"]:
        assert (rank["loss_source"], rank["step_source"]) == ("log", "log")
        assert rank["step"] % 7 == 0 and rank["global_step"] == rank["step"] > 0
        assert rank["has_probe"] is None
    progress = status["progress"]
    assert (progress["total"], progress["counts"], progress["source"]) == (4000, "run", "log")
    assert progress["fraction"] == pytest.approx(progress["step"] / 4000)
    assert status["total_steps"] == 4000
    assert 5 < status["eta_s"] == progress["eta_s"] < 4000

    # a restarted supervisor continues from the logs, and does not mistake a printed step for a
    # probe's
    os.kill(bar.processes()["supervisor"], signal.SIGKILL)
    wait_until(lambda: bar.events("supervisor_restarted"))
    wait_until(lambda: known(bar) and bar.status()["ranks"][0]["steps_per_s"])
    assert all(rank["step_source"] == "log" for rank in bar.status()["ranks"])

    wait_until(lambda: isolated.rank(0)["loss"] is not None and known(isolated))
    rank, progress = isolated.rank(0), isolated.status()["progress"]
    assert (rank["has_probe"], rank["state"], rank["loss_source"]) == (False, "running", "log")
    assert rank["loss"] == pytest.approx(3 - rank["step"] / 8000, abs=1e-4)
    assert rank["step"] > PATIENCE_S  # until then, a probe might have reported
    assert (progress["epoch"], progress["epochs"], progress["counts"]) == (2, 5, "epoch")
    assert progress["fraction"] == pytest.approx((1 + progress["step"] / 4000) / 5)
    rows = json.loads(ddptop_cli("ls", "--json").stdout)["jobs"]
    assert {row["job"]: row["progress"]["total"] for row in rows} == {"bar": 4000, "isolated": 4000}
    assert "epoch 2/5, step" in ddptop_cli("status", isolated.name).stdout

    (tmp_path / "bar.py.end").touch()
    assert bar.wait() == 0
    progress = bar.status()["progress"]
    assert (progress["step"], progress["fraction"], progress["eta_s"]) == (4000, 1.0, None)
    assert not bar.events("alert") and not bar.events("hang")
    assert isolated.cli("stop", isolated.name, "--grace", "1").returncode == 0
