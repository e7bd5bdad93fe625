"""Damaged files in a live job's run folder: the job continues and reports what was set aside."""

from __future__ import annotations

import os
import signal

import pytest

from ddptop_runner.host import procs

pytestmark = [pytest.mark.tmux, pytest.mark.torch]

SCRIPT = """
import os, time
for n in range(10**6):
    print("line", n, flush=True)
    if os.path.exists({stop!r}):
        break
    time.sleep(0.05)
"""


def test_damaged_history_and_snapshot_are_set_aside_and_replaced(
    launch_script, tmp_path, wait_until
):
    stop = tmp_path / "stop"
    job = launch_script(SCRIPT.format(stop=str(stop)), name="damaged")
    wait_until(lambda: len(job.status()["ranks"]) == 2 and job.rank(1)["pid"])
    pids = [rank["pid"] for rank in job.status()["ranks"]]
    folder = job.folder()

    # open both first: once one is found to be damaged, both are set aside
    with (folder / "history.db").open("r+b") as db, (folder / "history.db-wal").open("r+b") as wal:
        for file in (db, wal):
            file.write(b"\xa5" * max(8192, os.fstat(file.fileno()).st_size))
    wait_until((folder / "history.db.damaged-1").exists)
    wait_until(lambda: [e for e in job.events("alert") if "history.db was damaged" in e["message"]])
    wait_until(lambda: [a for a in job.status()["alerts"] if a["id"] == "damaged-file"])

    (node,) = (folder / "nodes").glob("*.json")
    supervisor = job.processes()["supervisor"]
    os.kill(supervisor, signal.SIGSTOP)  # so that neither this one nor the next interferes
    wait_until(lambda: procs.state_letter(supervisor) == "T")
    node.write_bytes(b'{"job": "dama')
    os.kill(supervisor, signal.SIGKILL)
    assert job.status()["state"] in ("running", "starting")
    wait_until(lambda: (job.status()["snapshot_age_s"] or 9) < 5 and job.rank(1)["pid"])
    wait_until(lambda: job.processes().get("supervisor") not in (None, supervisor))
    (event,) = job.events("supervisor_restarted")
    assert "its snapshot was damaged and set aside as" in event["message"]
    assert (node.parent / f"{node.name}.damaged-1").read_bytes() == b'{"job": "dama'
    assert [rank["pid"] for rank in job.status()["ranks"]] == pids

    stop.touch()
    assert job.wait() == 0
    assert job.status()["state"] == "finished"
    assert [rank["exit_code"] for rank in job.status()["ranks"]] == [0, 0]
