"""The run's step in real jobs that resume from a checkpoint: the same number everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.real_jobs import Job

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

SCRIPT = '''
"""Saves each 40 steps and goes on from there; ends as soon as a file says so."""
import json, os, time
import torch
import torch.distributed as dist
from descent import Descent

out, prints, saves = {out!r}, {prints!r}, {saves!r}
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
optimizer = Descent(model)
began = 0
if os.path.exists(out + "/last.pt"):
    began = (torch.load(out + "/last.pt") if saves else json.load(open(out + "/last.pt")))["step"]
step, over = began, torch.zeros(1)
while not over:
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0 and prints:
        print(f"epoch {{step // 200}} step {{step}} loss {{loss:.4f}}", flush=True)
    if step % 40 == 0 and rank == 0:
        if saves:
            torch.save({{"step": step, "model": model.state_dict()}}, out + "/new.pt")
        else:
            with open(out + "/new.pt", "w") as file:
                json.dump({{"step": step}}, file)
        os.rename(out + "/new.pt", out + "/last.pt")
    if os.path.exists(f"{{out}}/fail-{{attempt}}"):
        raise SystemExit(3)
    over[0] = os.path.exists(out + "/end")
    dist.all_reduce(over)
    time.sleep(0.02)
if rank == 0:
    with open(out + "/truth.json", "w") as file:
        json.dump([began, step], file)
dist.barrier()
dist.destroy_process_group()
'''


def test_resumed_jobs_show_the_run_step_or_mark_attempt_steps(
    launch_script, ddptop_cli, wait_until, tmp_path
):
    jobs: dict[str, Job] = {}
    for name in ("prints", "silent", "own_file"):
        out = tmp_path / f"of-{name}"
        out.mkdir()
        script = SCRIPT.format(out=str(out), prints=name == "prints", saves=name != "own_file")
        jobs[name] = launch_script(script, name=name, nproc=1)

    def touch(name: str) -> None:
        for of in jobs:
            (tmp_path / f"of-{of}" / name).touch()

    def trained(attempt: int) -> bool:
        return all(job.trains(attempt=attempt, step=60) for job in jobs.values())

    wait_until(lambda: trained(0), what="the first attempt")
    touch("fail-0")
    wait_until(lambda: trained(1), what="the second")
    live = wait_until(lambda: jobs["prints"].status(), what="status")
    assert live["step"] > live["attempt_step"] + 39
    touch("end")
    assert [job.wait() for job in jobs.values()] == [0, 0, 0]

    truth = {of: json.loads(Path(tmp_path, f"of-{of}", "truth.json").read_text()) for of in jobs}
    shown = {
        "prints": (truth["prints"][1], "run"),
        "silent": (truth["silent"][1], "run"),
        "own_file": (truth["own_file"][1] - truth["own_file"][0], "attempt"),
    }
    listed = json.loads(ddptop_cli("ls", "--json").stdout)["jobs"]
    compared = json.loads(ddptop_cli("compare", *jobs, "--json").stdout)["jobs"]
    for told in (listed, compared, [job.status() for job in jobs.values()]):
        assert {one["job"]: (one["step"], one["step_counts"]) for one in told} == shown
    assert {one["job"]: one["attempt_step"] for one in listed} == {
        of: end - began for of, (began, end) in truth.items()
    }
    table = ddptop_cli("ls").stdout
    assert f" {shown['own_file'][0]} of attempt 1 " in table
    for name in ("prints", "silent"):
        status, end = jobs[name].status(), truth[name][1]
        assert {rank["run_step"] for rank in status["ranks"]} == {end}
        assert status["checkpoint"]["global_step"] == end - end % 40
        assert f" {end} " in table
        text = ddptop_cli("status", name).stdout
        assert f"checkpoint step {end - end % 40:,}, " in text
        assert " STEP " in text and "STEP*" not in text
    assert {rank["run_step"] for rank in jobs["own_file"].status()["ranks"]} == {None}
    assert "STEP*" in ddptop_cli("status", "own_file").stdout
    for name in ("prints", "silent"):
        messages = [one["message"] for one in jobs[name].events() if one["attempt"]]
        steps = [one for one in messages if " step " in one]
        assert steps and not any("of attempt 1" in one for one in steps), steps
