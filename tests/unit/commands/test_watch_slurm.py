"""`ddptop watch slurm:ID`, with fake Slurm commands."""

from __future__ import annotations

import pytest
from ddptop.commands import watch


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """`slurm(nodes, status, said)`: configures the fakes; returns the file with srun's argv."""
    monkeypatch.setattr(watch, "is_terminal", lambda: True)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(nodes="n[1-2]", status=0, said=""):
        programs = {
            "squeue": f"echo '{nodes}'",
            "scontrol": "echo n1; echo n2",
            "srun": f"printf '%s\\n' \"$@\" >{tmp_path}/args; echo '{said}' >&2; exit {status}",
        }
        for name, text in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        return tmp_path / "args"

    return put


def test_a_step_shows_the_node_in_this_terminal(ddptop_cli, slurm):
    arguments = slurm()
    assert ddptop_cli("watch", "slurm:12", "--readonly").returncode == 0
    words = arguments.read_text().splitlines()
    assert {"--pty", "--overlap", "--jobid=12", "--nodelist=n1"} <= set(words)
    assert words[-2:] == ["ddptop", "--readonly"]
    ddptop_cli("watch", "slurm:12@n2")
    assert "--nodelist=n2" in arguments.read_text().splitlines()


def test_what_cannot_be_watched_is_one_line(ddptop_cli, slurm):
    slurm("")
    gone = ddptop_cli("watch", "slurm:12")
    assert (gone.returncode, gone.stderr) == (
        3,
        "ddptop: no running Slurm job 12; list jobs with `ddptop ls`\n",
    )
    slurm(status=1, said="srun: error: Access/permission denied")
    refused = ddptop_cli("watch", "slurm:12")
    assert refused.returncode == 1
    assert refused.stderr == (
        "ddptop: Slurm job 12 cannot be watched on n1: Access/permission denied\n"
    )


@pytest.mark.parametrize("target", ["slurm:", "slurm:x", "slurm:1@-w", "slurm:12@n9"])
def test_bad_targets(target, ddptop_cli, slurm):
    arguments = slurm()
    assert ddptop_cli("watch", target).returncode == 2
    assert not arguments.exists()
