"""`ddptop attach HOST:JOB`, with a fake ssh."""

from __future__ import annotations

import subprocess

import pytest
from ddptop.commands import attach


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """`ssh(status, said)`: configures the fake; returns the file with its arguments."""
    monkeypatch.setattr(attach, "is_terminal", lambda: True)

    def put(status, said="", run='""'):
        program = tmp_path / "ssh"
        program.write_text(
            f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/args\necho '{said}' >&2\n"
            f"eval {run}\nexit {status}\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("DDPTOP_SSH", str(program))
        return tmp_path / "args"

    return put


def test_the_job_is_attached_to_over_there(ddptop_cli, ssh):
    arguments = ssh(3)
    done = ddptop_cli("attach", "me@far:bert", "--readonly")
    assert (done.returncode, done.stderr) == (3, "")
    lines = arguments.read_text().splitlines()
    assert lines[0] == "-t"
    assert lines[-2] == "me@far"
    assert "export DDPTOP_ATTACHED_HOST=me@far; " in lines[-1]
    assert "exec ddptop attach bert --readonly" in lines[-1]


FAILURES = {
    # output of ssh: words in the line
    "ssh: Could not resolve hostname far: Name or service not known": "far: unknown host",
    "Host key verification failed.": "accept the key",
    "me@far: Permission denied (publickey).": "ssh-copy-id far",
    "ssh: connect to host far port 22: Connection refused": "refused; start sshd",
}


@pytest.mark.parametrize("said", FAILURES)
def test_each_failure_of_ssh_is_one_line(said, ddptop_cli, ssh):
    ssh(255, said)
    done = ddptop_cli("attach", "far:bert")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert FAILURES[said] in line


def test_a_machine_without_ddptop(ddptop_cli, ssh):
    ssh(127)
    done = ddptop_cli("attach", "far:bert")
    assert done.stderr == "ddptop: far: ddptop is not installed; run ddptop setup-host far\n"


@pytest.mark.parametrize("target", ["far:a b", "-oProxyCommand=x:bert", "far:-x", ":bert"])
def test_bad_targets_never_reach_ssh(target, ddptop_cli, ssh):
    arguments = ssh(0)
    assert ddptop_cli("attach", "--", target).returncode == 2
    assert not arguments.exists()


def test_ddptop_is_found_where_it_is_here(tmp_path):
    line = attach.there(["--version"], "far")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("ddptop"), done.stderr
