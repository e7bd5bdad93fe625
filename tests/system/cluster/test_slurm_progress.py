"""A job that Slurm requeues often: it is not given up as long as it makes progress."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_job_that_counts_only_the_steps_of_its_attempts_is_not_given_up(
    submit, slurm, trainer, wait_until
):
    """It resumes from a checkpoint that has no step, and prints no total."""
    script = trainer.ddp.read_text()
    for old, new in (
        ('{"model": model.state_dict(), "step": step}', "model.state_dict()"),
        ('state["model"]', "state"),
        ('state["step"]', "int((folder / 'at').read_text())"),
        ("        time.sleep(pause_s)", "            (folder / 'at').write_text(str(step))"),
    ):
        assert old in script
        script = script.replace(old, new)
    trainer.ddp.write_text(script)
    job, number = submit("--nodes", "2", name="counts", script="ddp.py")
    for attempt, least in enumerate((300, 60, 60, 60, 60)):  # no later attempt gets as far
        wait_until(
            lambda attempt=attempt, least=least: len(trainer.steps(attempt, 1)) > least,
            240,  # Slurm requeues it
            what=f"steps of attempt {attempt}",
        )
        slurm.run("scancel", "--batch", "--signal=USR1", number)  # the time limit is near
    wait_until(lambda: job.trains(["h1", "h2"], attempt=5), what="it goes on")
    assert slurm.job_state(number) == "RUNNING"
    assert trainer.steps(5, 0)[0]["step"] > 300 + 4 * 60
    said = (slurm.folder / f"log/ddptop-{number}.out").read_text()
    assert "not requeued" not in said, said
