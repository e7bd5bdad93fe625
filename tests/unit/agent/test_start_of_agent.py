"""Which modules the agent imports, and the logs of an attempt."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.support.programs import captured

from ddptop_runner.agent.run import NEXT, make_logs
from ddptop_runner.host.handover import AGENT_MAIN
from ddptop_runner.node import keeper


def run(*words: str, cwd: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    return captured(
        sys.executable, *words, input=said, cwd=cwd, env={"PYTHONPATH": "."}, timeout=60
    )


def test_modules_in_pythonpath_do_not_shadow_the_standard_library(tmp_path: Path) -> None:
    for name in ("json", "queue", "selectors", "signal", "socket", "threading"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    ended = run("-u", str(AGENT_MAIN), cwd=tmp_path, said='{"kind": "script", "zygote": false}')
    assert "KeyError: 'control_socket'" in ended.stderr, "it was started, and got no whole plan"


def test_pythonpath_precedes_installed_packages(tmp_path: Path) -> None:
    """Torch may be in both places; the agent uses the one that its ranks use."""
    code = f"import runpy, sys; runpy.run_path({str(AGENT_MAIN)!r}); print(*sys.path, sep=':')"
    order = run("-c", code, cwd=tmp_path).stdout.strip().split(os.pathsep)
    places = [sysconfig.get_path("stdlib"), str(tmp_path), sysconfig.get_path("purelib")]
    assert sorted(places, key=order.index) == places


def test_prepared_folder_becomes_the_attempts_folder_without_other_logs(tmp_path: Path) -> None:
    assert keeper.NEXT_ATTEMPT == NEXT
    (tmp_path / NEXT).mkdir()
    for name in ("launcher.log", "rank-0.log", "rank-1.log"):
        (tmp_path / NEXT / name).touch()
    kept = (tmp_path / NEXT / "rank-0.log").stat().st_ino
    make_logs(str(tmp_path), 1, ["rank-0.log"])
    assert os.listdir(tmp_path / "attempt-1") == ["rank-0.log"]
    assert (tmp_path / "attempt-1" / "rank-0.log").stat().st_ino == kept
    assert not (tmp_path / NEXT).exists()


def test_logs_are_private_regardless_of_umask(tmp_path: Path) -> None:
    for number, umask in enumerate((0, 0o777)):
        before = os.umask(umask)
        try:
            folder = Path(make_logs(str(tmp_path), number, ["rank-0.log"]))
        finally:
            os.umask(before)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "rank-0.log").stat().st_mode) == 0o600


@pytest.mark.torch
def test_torch_gets_no_rank_log_to_tail(tmp_path):
    """A thread per rank and stream would poll it, and a restart would wait for each of them."""
    from torch.distributed.elastic.multiprocessing.tail_log import TailLog

    from ddptop_runner.agent.elastic import RankFiles

    plan = {"logs_dir": str(tmp_path), "save_flag": "", "probe_dir": None, "max_restarts": 3}
    envs = {rank: {"TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(rank)} for rank in (0, 1)}
    files = RankFiles(plan).reify(envs)
    for followed in (files.tee_stdouts, files.tee_stderrs):
        assert TailLog("rank", followed, sys.stdout)._threadpool is None
    assert sorted(files.stdouts) == sorted(files.error_files) == [0, 1]


@pytest.mark.parametrize("file", sorted(AGENT_MAIN.parent.glob("*.py")), ids=lambda file: file.name)
def test_agent_is_valid_python_3_8_and_needs_only_torch(file: Path):
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "level", 0) == 0
        for alias in node.names
    }
    assert imported - set(sys.stdlib_module_names) <= {"torch", "ddptop_agent"}
