"""Checkpoints of real jobs: requested by signal and by file, and missing after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

LOOKED_BACK = 100
"""A checkpoint after more steps than one update covers; what comes later resumes from it."""
SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from descent import Descent
{imports}
dist.init_process_group("gloo")
rank, out = dist.get_rank(), {out!r}
model = torch.nn.Linear(64, 64)
optimizer = Descent(model)
wanted = []

def save(name):
    torch.save(model.state_dict(), f"{{out}}/tmp-{{name}}")
    os.rename(f"{{out}}/tmp-{{name}}", f"{{out}}/{{name}}.pt")

{setup}
for step in range(1, 100_000):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {at_step}
    time.sleep(0.03)
"""


@pytest.fixture
def launch_saver(launch_script, tmp_path: Path):
    """`launch_saver(setup, at_step)`: a job with two ranks that saves as configured."""

    def start(setup: str = "", at_step: str = "", *options: str, imports=""):
        script = SCRIPT.format(out=str(tmp_path), setup=setup, at_step=at_step, imports=imports)
        return launch_script(script, *options)

    return start


def test_script_that_handles_a_signal_is_stopped_once_it_has_saved(
    launch_saver, wait_until, tmp_path
):
    job = launch_saver(
        "signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1)) if rank == 0 else None\n"
        "saved = [int(name[5:-3]) for name in os.listdir(out) if name.endswith('.pt')]\n"
        "before = max(saved, default=0)",
        'print(f"step {before + step}/99999 loss {loss.item():.4f}", flush=True); '
        'wanted and save(f"step-{before + step}") or wanted.clear()',
    )
    wait_until(lambda: (job.status()["step"] or 0) >= LOOKED_BACK, what="some steps")
    assert ".pt" not in job.cli("status", job.name).stdout
    answer = job.cli("checkpoint", job.name)
    assert answer.returncode == 0, answer.stderr
    assert (
        "requested a checkpoint from script by sending SIGUSR1 to rank 0 and creating the flag file"
        in answer.stderr
    )
    path = Path(answer.stdout.strip())
    assert path.exists(), "it is named as it was renamed"
    assert path.parent == tmp_path
    wait_until(lambda: job.status()["checkpoint"]["path"] == str(path), what="its name")
    seen = job.status()["checkpoint"]
    assert (seen["rank"], seen["files"]) == (0, 1)
    assert seen["size_bytes"] == path.stat().st_size
    assert path.name == f"step-{seen['step']}.pt"
    wait_until(lambda: job.status()["checkpoint"]["global_step"] == seen["step"], what="its step")
    assert f"checkpoint step {seen['step']}, " in job.cli("status", job.name).stdout
    told = wait_until(lambda: job.events("checkpoint"), what="the event")
    assert [f"rank 0 saved {path.name} at step" in event["message"] for event in told] == [True]
    # a failure now reports what is lost since then
    job.kill_rank(1)
    wait_until(lambda: job.trains(attempt=1), what="attempt 1")
    failure = job.events("failure")[0]["message"]
    assert f"since {path.name} at step {seen['step']}." in failure
    assert "Work lost: " in failure
    # in the next attempt, it saves before it is stopped
    answer = job.cli("stop", job.name, "--save")
    assert answer.returncode == 0, answer.stderr
    last = job.status()["checkpoint"]
    assert (last["attempt"], job.status()["state"]) == (1, "stopped")
    assert f": {last['path']}\n" in answer.stderr and "own schedule" not in answer.stderr
    assert answer.stderr.startswith("ddptop: requested a checkpoint from script by ")
    assert "; waiting up to 60 s for it\n" in answer.stderr
    assert Path(last["path"]).exists()
    of_run = seen["step"] + last["step"]
    assert (last["global_step"], Path(last["path"]).name) == (of_run, f"step-{of_run}.pt")
    assert f"checkpoint step {of_run:,}, " in job.cli("status", job.name).stdout
    assert not (job.folder() / "save-now").exists()
    assert job.cli("checkpoint", job.name).returncode == 2


def test_script_without_a_handler_survives_and_is_asked_in_other_ways(
    launch_saver, wait_until, tmp_path
):
    job = launch_saver(
        'flag = os.environ["DDPTOP_CHECKPOINT_FILE"]',
        f'os.path.exists("{tmp_path}/look") and rank == 0 and os.path.exists(flag) '
        'and (save("flagged"), os.remove(flag)); '
        f'os.path.exists("{tmp_path}/ask") and ddptop.checkpoint_requested() '
        'and save(f"shard-{rank}")',
        imports="import ddptop",
    )
    wait_until(job.trains, what="all ranks to train")
    pids = [rank["pid"] for rank in job.status()["ranks"]]
    answer = job.cli("checkpoint", job.name, "--timeout", "1")
    assert (answer.returncode, answer.stdout) == (124, "")
    assert "handles neither SIGUSR1 nor SIGUSR2, and the flag file was not" in answer.stderr
    answer = job.cli("stop", job.name, "--save", "--timeout", "0.5")
    assert answer.returncode == 1
    assert f"{job.name} was not stopped and is still running" in answer.stderr
    step = job.status()["step"]
    wait_until(lambda: job.status()["step"] > step + 3, what="the job to go on")
    assert [rank["pid"] for rank in job.status()["ranks"]] == pids
    (tmp_path / "look").touch()
    answer = job.cli("checkpoint", job.name)
    assert (answer.returncode, answer.stdout) == (0, f"{tmp_path}/flagged.pt\n"), answer.stderr
    # every rank gets the request, and together they save one checkpoint
    (tmp_path / "look").unlink()
    (tmp_path / "ask").touch()
    answer = job.cli("checkpoint", job.name)
    # if sizes are equal, it is named after the file reported first
    assert answer.returncode == 0 and answer.stdout.startswith(f"{tmp_path}/shard-"), answer.stderr
    wait_until(lambda: job.status()["checkpoint"]["files"] == 2, what="both files to be counted")
    renamed = str(tmp_path / "shard-0.pt")
    wait_until(lambda: job.status()["checkpoint"]["path"] == renamed, what="its name")
    assert job.cli("kill", job.name).returncode == 0


SPOILED = """
import os, time
import ddptop
spoils = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(1, 100_000):
    ddptop.report(loss=float("nan") if spoils and step > 49 else 0.5)
    time.sleep(0.03)
"""


def test_non_finite_loss_ends_or_restarts_the_job(launch_script, wait_until):
    stopped = launch_script(SPOILED, "--on-nan", "stop", name="stops")
    restarted = launch_script(SPOILED, "--on-nan", "restart", name="restarts")
    wait_until(lambda: restarted.trains(attempt=1), what="the restart")
    failure = restarted.events("failure")[0]
    assert "The loss on rank 1 became NaN at step 50; the last finite" in failure["message"]
    assert failure["rank"] == 1
    assert "No checkpoint was detected" in failure["message"]
    assert restarted.status()["restarts_used"] == 1
    assert restarted.cli("kill", restarted.name).returncode == 0
    assert stopped.wait() == 93
    cause = stopped.status()["cause"]
    assert (stopped.status()["state"], cause["kind"]) == ("failed", "nan")
    assert "rank 1 became NaN at step 50; the last finite loss was 0." in cause["summary"]
    assert "No checkpoint was detected" in cause["summary"]
    assert cause["work_lost_steps"] >= 50
    assert Path(cause["evidence"]).is_dir()
    states = {rank["state"] for rank in stopped.status()["ranks"]}
    assert states == {"stopped"}
