"""Launch, watch, leave, and come back: one job from launch to removal."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from ddptop_runner.host import procs

pytestmark = [pytest.mark.torch, pytest.mark.tmux]


def computed(folder: Path, attempt: int, rank: int) -> dict[int, dict[str, float]]:
    """What the script itself recorded: {step: {loss, at}}."""
    file = folder / f"losses-{attempt}-{rank}.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return {line["step"]: line for line in lines}


def test_losses_equal_those_the_script_computed_and_ranks_are_profiled_at_the_same_steps(
    launch, ddp_trainer, trainer, wait_until
):
    job = launch(10_000, 0.05)
    wait_until(job.trains, what="all ranks to train")
    compared = 0
    for _ in range(4):
        asked_at = time.time()
        status = json.loads(job.cli("status", job.name, "--json").stdout)
        for rank in status["ranks"]:
            # a step can be reported a moment before the script records it
            wait_until(lambda rank=rank: rank["loss_step"] in computed(trainer, 0, rank["rank"]))
            script = computed(trainer, 0, rank["rank"])
            mine = script[rank["loss_step"]]
            assert rank["loss"] == pytest.approx(mine["loss"], rel=1e-4)
            assert rank["loss_source"] == "probe"
            # the newest step older than 2 s must have arrived
            settled = [step for step, line in script.items() if line["at"] < asked_at - 2.0]
            assert rank["loss_step"] >= max(settled, default=0)
            compared += 1
        before = status["step"]
        wait_until(lambda before=before: job.status()["step"] > before + 5, what="progress")
    assert compared == 8

    answer = job.cli("profile", job.name, "--steps", "3", "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert sorted(rank["rank"] for rank in found["ranks"]) == [0, 1] and found["differences"]
    for rank in found["ranks"]:
        assert rank["steps"] == 3 and rank["ops"] and 0 < rank["communication"] < 1
        assert Path(rank["path"]).read_bytes()[:2] == b"\x1f\x8b"
    step = job.status()["step"]
    wait_until(lambda: job.status()["step"] > step + 5, what="the training to go on")
    text = job.cli("profile", job.name, "-r", "1", "--steps", "1").stdout
    assert "--- rank 1 ---" in text and "rank 0" not in text and "ui.perfetto.dev" in text
    assert job.cli("profile", job.name, "-r", "7").returncode == 2
    assert job.cli("stop", job.name).returncode == 0


def test_finished_job_has_complete_events_and_can_be_relaunched(
    launch, trainer, ddptop_home, monkeypatch, wait_until
):
    monkeypatch.setenv("ONLY_THEN", "1")
    job = launch(12, 0.02)
    monkeypatch.delenv("ONLY_THEN")
    assert job.wait() == 0
    status = job.status()
    assert (status["state"], status["attempt"], status["exit_code"]) == ("finished", 0, 0)
    assert [rank["step"] for rank in status["ranks"]] == [12, 12]
    assert [rank["exit_code"] for rank in status["ranks"]] == [0, 0]
    assert status["cause"] is None
    types = [event["type"] for event in job.events()]
    assert types[0] == "launched"
    assert types.index("attempt_started") < types.index("training") < types.index("finished")
    assert types.count("rank_exited") == 2
    log = job.cli("logs", job.name, "-r", "1").stdout
    assert "rank 1 attempt 0 step 12" in log
    assert "rank 0" not in log
    for rank, script in ((r, computed(trainer, 0, r)) for r in (0, 1)):
        assert status["ranks"][rank]["loss"] == pytest.approx(script[12]["loss"], rel=1e-4)
    listed = json.loads(job.cli("ls", "--json").stdout)["jobs"]
    assert [row["job"] for row in listed] == [job.name]
    folder = job.folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not (folder / "history.db-wal").exists()
    assert not (folder / "control.sock").exists()
    assert json.loads((folder / "job.json").read_text())["schema"] == 1

    # a restart is a new attempt in the same folder
    answer = job.cli("restart", job.name)
    assert answer.returncode == 0, answer.stderr
    assert "ONLY_THEN" in answer.stderr
    wait_until(lambda: job.status()["attempt"] == 1, what="the second attempt")
    assert job.wait() == 0
    status = job.status()
    assert (status["state"], status["attempt"]) == ("finished", 1)
    assert "attempt 0 step 12" in job.cli("logs", job.name, "--attempt", "0").stdout
    assert "attempt 1 step 12" in job.cli("logs", job.name).stdout
    assert [event["attempt"] for event in job.events("attempt_started")] == [0, 1]
    assert job.cli("rm", job.name).returncode == 0
    assert not folder.exists()
    assert job.cli("status", job.name).returncode == 3


def test_variable_values_reach_only_the_ranks_and_stacks_show_their_location(
    launch_script, wait_until, monkeypatch
):
    hush, given = f"hush-{uuid.uuid4().hex}", f"yes-{uuid.uuid4().hex}"
    monkeypatch.setenv("MY_SECRET", hush)
    job = launch_script(
        "import os, time\n"
        "import ddptop\n"
        "print(os.environ['MY_SECRET'], os.environ['GIVEN'], os.getcwd(), flush=True)\n"
        "def stand_here():\n    time.sleep(600)\n"
        "ddptop.report(loss=1)\nstand_here()\n",
        *["--env", f"GIVEN={given}", "--cwd", "/"],
    )
    wait_until(lambda: f"{hush} {given} /" in job.log(), what="the log")
    for path in job.folder().rglob("*"):
        if path.is_file() and "logs" not in path.parts:
            with contextlib.suppress(FileNotFoundError):  # a new snapshot that is not renamed yet
                written = path.read_bytes()
                assert hush.encode() not in written, path
                assert given.encode() not in written, path
    assert not (job.folder() / "handover.json").exists()
    for pid in procs.all_pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if pid != os.getpid():
            assert given.encode() not in command
    spec = json.loads((job.folder() / "job.json").read_text())
    assert "MY_SECRET" in spec["env_names"]
    assert spec["env_overrides"] == ["GIVEN"]

    for rank in (0, 1):
        wait_until(lambda rank=rank: job.rank(rank).get("has_probe"), what="the probe")
    wait_until(
        lambda: job.cli("stacks", job.name).stdout.count("in stand_here") == 2, what="both there"
    )
    only = job.cli("stacks", job.name, "-r", "1").stdout
    assert only.count("in stand_here") == 1
    assert "--- rank 1" in only
    assert job.status()["state"] in ("starting", "running")
    assert job.cli("stacks", job.name, "-r", "7").returncode == 1
    assert job.cli("kill", job.name).returncode == 0


def test_an_interpreter_with_torch_but_without_ddptop_runs_the_job(
    launch, tmp_path, ddptop_cli, trainer
):
    site = next(Path(entry) for entry in sys.path if Path(entry, "torch").is_dir())
    linked = tmp_path / "packages"
    linked.mkdir()
    for entry in site.iterdir():
        if "ddptop" not in entry.name and entry.suffix != ".pth":
            (linked / entry.name).symlink_to(entry)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next((venv / "lib").glob("python3*/site-packages"))
    (packages / "torch.pth").write_text(f"{linked}\n")
    python = venv / "bin" / "python"
    gone = subprocess.run([python, "-c", "import ddptop_runner"], capture_output=True, check=False)
    assert gone.returncode != 0
    (trainer / "train.py").write_text(
        (trainer / "train.py").read_text() + "print('python', sys.prefix)\n"
    )
    job = launch(5, 0.0, "--python", str(python))
    assert job.wait() == 0
    assert f"python {venv}" in job.cli("logs", job.name).stdout
    assert job.rank(0)["step"] == 5
    assert job.rank(1)["loss_source"] == "api"


def test_two_jobs_of_one_script_get_names_and_stop_leaves_no_process(
    launch_script, wait_until, ddptop_cli
):
    script = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'saving\\n'))\n"
        "child = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', child], start_new_session=True)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    stopped, killed = (launch_script(script, name="train") for _ in range(2))
    assert (stopped.name, killed.name) == ("train", "train-2")
    answer = ddptop_cli("status")
    assert answer.returncode == 2
    assert "train, train-2" in answer.stderr
    for job in (stopped, killed):
        for rank in (0, 1):
            wait_until(lambda job=job, rank=rank: "up" in job.log(rank), what="the ranks")
    for job, arguments in (
        (stopped, ["stop", "train", "--grace", "1"]),
        (killed, ["kill", "train-2"]),
    ):
        job_id = json.loads((job.folder() / "job.json").read_text())["job_id"]
        assert len(procs.pids_of_job(job_id)) >= 4  # the ranks and their children
        assert job.cli(*arguments).returncode == 0
        assert {pid: procs.argv(pid) for pid in procs.pids_of_job(job_id)} == {}
        status = job.status()
        assert status["state"] == "stopped"
        assert [rank["state"] for rank in status["ranks"]] == ["stopped", "stopped"]
        assert {rank["signal"] for rank in status["ranks"]} == {"SIGKILL"}
    assert "saving" in stopped.cli("logs", stopped.name).stdout
    assert stopped.wait() == 4
    assert stopped.cli("stop", stopped.name).returncode == 2


def test_script_that_fails_at_once_is_not_retried_and_shows_its_last_lines(launch_script):
    job = launch_script("print('almost')\nraise RuntimeError('no such luck [b]x[/b]')\n")
    assert job.wait() == 1
    status = job.status()
    assert (status["state"], status["restarts_used"]) == ("failed", 0)
    assert status["cause"]["kind"] == "exception"
    assert "RuntimeError: no such luck" in status["cause"]["summary"]
    shown = job.cli("status", job.name).stdout
    assert "RuntimeError: no such luck [b]x[/b]" in shown
    assert "  almost" in shown
    assert len(job.events("failure")) == 1


def test_restart_of_a_live_job_uses_no_budget_and_logs_follow_it(launch, wait_until):
    job = launch(10_000, 0.05, "--max-restarts", "1")
    wait_until(job.trains, what="training")
    old = [rank["pid"] for rank in job.status()["ranks"]]
    follower = subprocess.Popen(
        [sys.executable, "-m", "ddptop", "logs", job.name, "-r", "1", "-f"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert follower.stdout is not None
    with follower.stdout as lines:
        first = lines.readline()  # it follows the first attempt before that one ends
        assert job.cli("restart", job.name).returncode == 0
        wait_until(lambda: job.trains(attempt=1), what="the second attempt")
        status = job.status()
        assert job.cli("stop", job.name).returncode == 0
        output = first + lines.read()
    assert (status["restarts_used"], status["restarts_left"]) == (0, 1)
    assert not set(old) & {rank["pid"] for rank in status["ranks"]}
    assert follower.wait(timeout=60) == 0
    assert "rank 1 attempt 0 step 2" in output
    assert "rank 1 attempt 1 step 2" in output
