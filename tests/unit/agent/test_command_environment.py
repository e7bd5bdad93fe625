"""The environment of a command: its own variables, its job's, and none that mislead a launcher."""

from __future__ import annotations

import os
from typing import Any

from ddptop_runner.agent.command import command_environment
from ddptop_runner.host import handover

PLAN: dict[str, Any] = {
    "job_id": "train@1",
    "save_flag": "/r/save",
    "probe_dir": "/p",
    "probe_socket": "/r/probe.sock",
    "replica_check": False,
    "memory_snapshot": True,
    "stacks_dir": "/r/stacks",
    "pty": False,
}


def test_own_variables_are_kept_and_the_probe_comes_first():
    env = command_environment({"PYTHONPATH": "/mine", "HOME": "/h"}, PLAN, 2)
    assert env["PYTHONPATH"] == os.pathsep.join(["/p", "/mine"])
    assert (env["HOME"], env["DDPTOP_JOB_ID"], env["DDPTOP_ATTEMPT"]) == ("/h", "train@1", "2")
    assert command_environment({}, PLAN, 0)["PYTHONPATH"] == "/p"  # no empty entry


def test_no_variables_of_a_torch_elastic_rank():
    names = set(command_environment({}, PLAN, 0))
    assert names == {
        "DDPTOP_JOB_ID",
        "DDPTOP_ATTEMPT",
        "DDPTOP_CHECKPOINT_FILE",
        "DDPTOP_MEMORY_SNAPSHOT",
        "DDPTOP_PROBE_SOCK",
        "DDPTOP_REPLICA_CHECK",
        "DDPTOP_STACKS_DIR",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
    }
    own = {name for name in names if name.startswith("DDPTOP_")}
    assert own <= handover.OF_A_RANK, "a job launched from within has its own"


def test_without_a_probe_pythonpath_is_unchanged():
    env = command_environment({"PYTHONPATH": "/mine"}, {**PLAN, "probe_dir": None}, 0)
    assert env["PYTHONPATH"] == "/mine"
    assert "DDPTOP_PROBE_SOCK" not in env


def test_variables_set_by_the_user_are_not_overridden():
    env = command_environment({"PYTHONUNBUFFERED": "", "TERM": "screen"}, {**PLAN, "pty": True}, 0)
    assert (env["PYTHONUNBUFFERED"], env["TERM"]) == ("", "screen")
    assert command_environment({"TERM": "dumb"}, {**PLAN, "pty": True}, 0)["TERM"] != "dumb"
