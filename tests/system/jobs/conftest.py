"""Real jobs."""

from tests.support.real_jobs import (
    ddp_trainer,
    launch,
    launch_command,
    launch_script,
    trainer,
    wait_until,
)

__all__ = [
    "ddp_trainer",
    "launch",
    "launch_command",
    "launch_script",
    "trainer",
    "wait_until",
]
