"""Which modules the agent imports: Python's own, regardless of PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.programs import captured

from ddptop_runner.host.handover import AGENT_MAIN


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
