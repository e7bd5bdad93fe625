"""The test cluster itself: jobs on its nodes, requeueing, and preemption."""

from __future__ import annotations


def submitted(slurm, script: str, *options: str) -> str:
    file = slurm.folder / "job.sh"
    file.write_text(f"#!/bin/bash\n{script}\n")
    output = f"--output={slurm.folder}/log/job-%j.out"
    return slurm.run("sbatch", "--parsable", "--open-mode=append", output, *options, str(file))


def output(slurm, job: str) -> str:
    file = slurm.folder / f"log/job-{job}.out"
    return file.read_text() if file.exists() else ""


def test_a_job_runs_on_two_nodes_with_gpus(slurm, wait_until):
    script = 'srun --label bash -c "hostname; echo gpus $CUDA_VISIBLE_DEVICES"'
    job = submitted(slurm, script, "-N2", "--gres=gpu:2")
    wait_until(lambda: slurm.job_state(job) == "COMPLETED", 30)
    told = output(slurm, job).split("\n")
    assert {"0: h1", "1: h2"} <= set(told)
    assert {"0: gpus 0,1", "1: gpus 0,1"} <= set(told)


def test_higher_partition_preempts_and_the_job_starts_again(slurm, wait_until):
    victim = submitted(
        slurm, "echo count ${SLURM_RESTART_COUNT:-0}; sleep 1000", "-N3", "--exclusive"
    )
    wait_until(lambda: "count 0" in output(slurm, victim), 30)
    other = submitted(slurm, "true", "-N1", "--exclusive", "-p", "high")
    wait_until(lambda: slurm.job_state(other) == "COMPLETED", 30)
    assert slurm.job_state(victim) == "PENDING"
    slurm.run("scontrol", "update", f"jobid={victim}", "starttime=now")
    wait_until(lambda: "count 1" in output(slurm, victim), 30)
