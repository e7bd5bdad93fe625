"""Which files of a launcher are installed, and where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch import launchers


def program(path: Path, says: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_environment_comes_before_the_path(tmp_path):
    python = program(tmp_path / "v" / "python")
    other = program(tmp_path / "bin" / "accelerate")
    env = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    assert launchers.find_tools("accelerate", python, env, python_given=False).program == other
    own = program(tmp_path / "v" / "accelerate")
    assert launchers.find_tools("accelerate", python, env, python_given=False).program == own


def test_another_environments_launcher_is_not_taken_for_a_chosen_python(tmp_path):
    python = program(tmp_path / "v" / "python")
    program(tmp_path / "bin" / "deepspeed")
    env = {"PATH": str(tmp_path / "bin")}
    with pytest.raises(UsageError) as refused:
        launchers.find_tools("deepspeed", python, env, python_given=True)
    assert f"deepspeed not found next to {python}; run pip install deepspeed" in str(refused.value)
    with pytest.raises(UsageError, match="or on PATH"):
        launchers.find_tools("deepspeed", python, {"PATH": ""}, python_given=False)


def test_mpirun_belongs_to_the_machine(tmp_path):
    python = program(tmp_path / "v" / "python")
    env = {"PATH": str(tmp_path / "bin")}
    with pytest.raises(
        UsageError, match="mpirun is not on PATH; install it with apt-get install openmpi-bin"
    ):
        launchers.find_tools("mpi", python, env, python_given=True)
    program(tmp_path / "bin" / "mpirun", "HYDRA build details:")
    seen = launchers.find_tools("mpi", python, env, python_given=True)
    assert (seen.open_mpi, seen.has_mpirun, seen.root) == (False, True, os.geteuid() == 0)
    program(tmp_path / "bin" / "mpirun", "mpirun (Open MPI) 4.1.4")
    assert launchers.find_tools("mpi", python, env, python_given=True).open_mpi


def test_one_process_needs_nothing(tmp_path):
    seen = launchers.find_tools("none", "/v/python", {"PATH": ""}, python_given=True)
    assert (seen.program, seen.python) == (None, "/v/python")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("distributed_type: 'NO'\n", "NO"),
        ("a: 1\ndistributed_type: FSDP\n", "FSDP"),
        ('{\n  "distributed_type": "MULTI_GPU"\n}', "MULTI_GPU"),
        ("", ""),
        ("\x00\xff", ""),
    ],
)
@pytest.mark.parametrize("variable", ["HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_users_own_configuration(tmp_path, text, kind, variable):
    below = {"HF_HOME": "", "XDG_CACHE_HOME": "huggingface", "HOME": ".cache/huggingface"}
    folder = tmp_path / below[variable] / "accelerate"
    python = program(tmp_path / "v" / "python")
    program(tmp_path / "v" / "accelerate")
    env = {"HOME": "/none", variable: str(tmp_path)}
    assert (
        launchers.find_tools("accelerate", python, env, python_given=True).accelerate_config is None
    )
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text(text, errors="surrogateescape")
    seen = launchers.find_tools("accelerate", python, env, python_given=True)
    assert seen.accelerate_config == str(folder / "default_config.yaml")
    assert seen.accelerate_type == kind


def test_ports_are_free_and_differ():
    ports = {launchers.free_port() for _ in range(5)}
    assert len(ports) > 1 and ports <= set(launchers.PORTS)
