"""`ddptop launch --slurm` without submitting anything: what is refused, and the script."""

from __future__ import annotations

import shlex
import stat

import pytest
from tests.support.tables import table


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch, tmp_path):
    """A machine without Slurm."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", str(bin_))
    return bin_


@pytest.mark.parametrize("case", table(__file__, "refused"), ids=lambda case: case[0])
def test_bad_input(case, bad_input):
    _, status, line, words = case
    shown = bad_input(status, "launch", "--slurm", *shlex.split(line))
    assert all(word in shown for word in words), shown


def test_requeues_are_of_slurm_alone(bad_input):
    line = bad_input(2, "launch", "--max-requeues", "2", "train.py")
    assert "--max-requeues requires --slurm" in line


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_batch_step_gets_the_command_as_typed(ddptop_cli, tmp_path, monkeypatch, no_slurm):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    typed = ["--slurm", "-d", "--nodes", "2", "--gpus", "auto:4", "--name=b", "--env", "A=b c"]
    target = ["--", "--time", "1:00:00", "train.py", "--lr", "0.1"]
    dry = ddptop_cli("launch", "--dry-run", *typed, *target)
    assert dry.returncode == 0
    *_, last = dry.stdout.splitlines()
    assert "ddptop launch --slurm --name b --python " in last
    assert last.endswith(" --nodes 2 --gpus auto:4 --env 'A=b c' train.py --lr 0.1")
    assert "#SBATCH --gpus-per-node=4\n#SBATCH --time 1:00:00\n" in dry.stdout

    program(no_slurm, "sbatch", 'echo "$@" >argv; echo 41; cat >/dev/null 2>&1')
    monkeypatch.setenv("PATH", f"{no_slurm}:/usr/bin:/bin")
    done = ddptop_cli("launch", *typed, *target)
    assert (done.returncode, done.stdout) == (0, "b\n")
    assert "submitted Slurm job 41; once it runs: ddptop attach b" in done.stderr

    cells = ["40", "b", "PENDING", "p", "1", "", "Priority", *["N/A"] * 4, "40"]
    program(no_slurm, "squeue", "cat <<'EOF'\n" + "\x1f".join(cells) + "\nEOF")
    monkeypatch.setenv("SLURM_CONF", "/dev/null")
    twice = ddptop_cli("launch", *typed, *target)
    assert twice.returncode == 2
    assert "the name 'b' is in use by Slurm job 40; " in twice.stderr
    (tmp_path / "b.py").write_text("")
    derived = ddptop_cli("launch", "--slurm", "--nproc", "1", "b.py")
    assert derived.stdout == "b-2\n"
    assert (tmp_path / "argv").read_text().endswith(" --job-name=b-2\n"), "not SBATCH_JOB_NAME"
    (no_slurm / "squeue").unlink()

    program(no_slurm, "sbatch", r"printf 'sbatch: error: Invalid \033[31m \377\r\n' >&2; exit 1")
    refused = ddptop_cli("launch", *typed, *target)
    assert refused.returncode == 1
    assert refused.stderr.startswith("ddptop: Slurm refused b: Invalid \ufffd[31m \ufffd; see ")
