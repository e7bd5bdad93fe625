"""Real training frameworks, each in its own environment, which `make test-frameworks` creates.

A test asks for `torch_python`, `tensorflow_python` or `horovod_python`, and is skipped, saying what
is missing, where that environment or a module of it is not there.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.support.framework_runs")
from tests.support.framework_runs import Run  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_S = 240.0
"""DeepSpeed compiles for two minutes on its first run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.frameworks)
            item.add_marker(pytest.mark.tmux)
            item.add_marker(pytest.mark.slow)


def _python(name: str) -> Path:
    variable = f"FRAMEWORKS_{name.upper()}"
    given = os.environ.get(variable)
    python = Path(given or ROOT / ".frameworks" / name / "bin" / "python").absolute()
    if not python.is_file():
        pytest.skip(f"{python} is not there: make test-frameworks, or name another by {variable}")
    return python


@functools.cache
def _lacks(python: Path, module: str) -> bool:
    look = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({module!r}))"
    return subprocess.run([python, "-c", look], check=False).returncode != 0


@pytest.fixture
def torch_python() -> Path:
    """Python with torch, accelerate, lightning, transformers, deepspeed and rich."""
    return _python("torch")


@pytest.fixture
def tensorflow_python() -> Path:
    """Python with tensorflow."""
    return _python("tensorflow")


@pytest.fixture
def horovod_python() -> Path:
    """Python with horovod and its torch."""
    return _python("horovod")


@pytest.fixture
def needs() -> Callable[[Path, str], None]:
    """`needs(python, "lightning")` skips the test if that module is missing."""

    def check(python: Path, module: str) -> None:
        if _lacks(python, module):
            pytest.skip(f"{module} is not installed for {python}")

    return check


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def wait_until(wait_until: Callable[..., Any]) -> Callable[..., Any]:
    """The usual fixture, with a timeout that suits frameworks."""

    def wait(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S, **options: Any) -> Any:
        return wait_until(condition, timeout_s, **options)

    return wait


@pytest.fixture
def start(tmp_path, ddptop_cli, wait_until) -> Iterator[Callable[..., Run]]:
    """`start(script, *options_and_launcher, steps=, pause_s=)` launches a script of `scripts`.

    The words end with the script's place: `["--nproc", "2"]`, or `["--", "deepspeed", ...]`.
    """
    folder = tmp_path / "notes"
    folder.mkdir()
    started: list[Run] = []
    shutil.copytree(SCRIPTS, tmp_path / "scripts")

    def go(script: str, *words: object, steps: int = 4000, pause_s: float = 0.05) -> Run:
        answer = ddptop_cli(
            *["launch", "-d", "--cwd", str(tmp_path), *map(str, words)],
            *[str(tmp_path / "scripts" / script), str(steps), str(pause_s), str(folder)],
        )
        assert answer.returncode == 0, answer.stderr
        run = Run(answer.stdout.strip(), ddptop_cli, folder, wait_until)
        started.append(run)
        return run

    yield go
    for run in started:  # a failed test has not stopped it
        if run.marked_processes():
            ddptop_cli("kill", run.name)
