"""What may be imported where, seen in the `sys.modules` of fresh interpreters."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from tests.support.programs import captured

ROOT = Path(__file__).parents[3]
RUNNER = ROOT / "runner" / "ddptop_runner"

IMPORT_EACH = """
import importlib, json, sys
offenders = {}
for name in sys.argv[1].split(","):
    before = set(sys.modules)
    importlib.import_module(name)
    found = {"textual", "rich", "torch", "ddptop"} & (set(sys.modules) - before)
    if found:
        offenders[name] = sorted(found)
print(json.dumps(offenders))
"""

OUTSIDERS = """
import json, sys
before = set(sys.modules)
import ddptop
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""

LATE = """
import json, sys
import ddptop.tui.app, ddptop.tui.screens.job, ddptop.tui.screens.overview
assert "ddptop.tui.operations" in sys.modules
late = {
    "ddptop_runner.foreign.actions", "ddptop.tui.launching",
    "ddptop_runner.host.stopping", "ddptop_runner.jobs.checkpoint",
}
print(json.dumps(sorted(late & set(sys.modules))))
"""
"""What it takes to do something to a job, once the screens that offer it are imported."""


def ask(script: str, *args: str) -> object:
    answer = captured(sys.executable, "-c", script, *args, cwd="/", timeout=60)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def runner_modules() -> list[str]:
    """All modules that ddptop's own Python imports: not those loaded by path in a job's Python."""
    names = []
    for file in sorted(RUNNER.rglob("*.py")):
        parts = file.relative_to(RUNNER.parent).with_suffix("").parts
        if "agent" in parts or "inject" in parts:
            continue
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_the_runner_needs_neither_interface_nor_torch() -> None:
    names = runner_modules()
    assert "ddptop_runner.model.snapshot" in names and "ddptop_runner.base.paths" in names
    assert ask(IMPORT_EACH, ",".join(names)) == {}


def test_import_ddptop_in_a_training_costs_nothing_foreign() -> None:
    assert set(ask(OUTSIDERS)) <= {"ddptop", "ddptop_runner"}


def test_the_first_frame_waits_for_nothing_that_is_done_to_a_job() -> None:
    assert ask(LATE) == []


def code_of_the_job() -> list[Path]:
    return sorted([*(RUNNER / "agent").rglob("*.py"), *(RUNNER / "probe").rglob("*.py")])


@pytest.mark.parametrize("file", code_of_the_job(), ids=lambda file: str(file.relative_to(RUNNER)))
def test_code_under_the_jobs_python_is_valid_in_3_8(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("file", code_of_the_job(), ids=lambda file: str(file.relative_to(RUNNER)))
def test_code_under_the_jobs_python_imports_only_stdlib_torch_and_itself(file: Path) -> None:
    # ddptop: the copy of the job's own environment; ddptop_agent: the agent under its loaded name
    ours = {"ddptop", "ddptop_agent", "ddptop_runner", "sitecustomize"}
    allowed = {"torch"} | ours | set(sys.stdlib_module_names)
    siblings = {sibling.stem for sibling in code_of_the_job()}
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
    assert found - allowed - siblings == set()
