"""The job's Python: which one it is, and whether it has torch, without importing torch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddptop_runner.base import programs
from ddptop_runner.base.errors import UsageError

MINIMUM_TORCH = (2, 6)
NEWEST_TORCH = (2, 15)
"""The newest that `make test-torch` was run with."""
TESTED_PYTHONS = ((3, 10), (3, 13))
TORCH_REMEDY = "install torch {}.{} or newer".format(*MINIMUM_TORCH)
ANSWER_S = 30.0
"""Python on a cold network disk can take this long to start."""

_ASK = """
import os, sys
path = [entry for entry in sys.path if entry]  # the working directory may contain a json.py
given = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
sys.path[:] = [entry for entry in path if os.path.abspath(entry) not in given]
import importlib.util, json
sys.path[:] = path
try:
    found = importlib.util.find_spec("torch")
    origin = found and found.origin
except Exception:
    origin = None
print(json.dumps([sys.version_info[:2], origin]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter that a job can run under."""

    path: str
    version: tuple[int, int]
    torch_version: str | None
    """None if torch is not installed in it."""


def choose(asked: str | None, env: Mapping[str, str]) -> str:
    """The interpreter's path: the requested one, or that of the active environment.

    The active environment is `$VIRTUAL_ENV`, then `$CONDA_PREFIX`, then ddptop's own interpreter if
    it has torch, then the first python3 or python on PATH.

    Raises:
        UsageError: the requested interpreter does not exist.
    """
    if asked is not None:
        found = shutil.which(os.path.expanduser(asked), path=env.get("PATH"))  # noqa: PTH111
        if found is None:
            raise UsageError(f"--python {asked}: no such interpreter", "check the path")
        return os.path.abspath(found)  # noqa: PTH100 - a venv's link must not be resolved
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = env.get(variable)
        if prefix and (candidate := Path(prefix) / "bin" / "python").exists():
            return str(candidate)
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    for name in ("python3", "python"):
        if found := shutil.which(name, path=env.get("PATH")):
            return found
    return sys.executable


def inspect(path: str) -> Interpreter:
    """Find out an interpreter's version and whether it has torch.

    Raises:
        UsageError: it does not run.
    """
    if path == sys.executable and (spec := importlib.util.find_spec("torch")) is not None:
        return Interpreter(path, sys.version_info[:2], _torch_version(spec.origin))
    try:
        answer = programs.run([path, "-c", _ASK], ANSWER_S)
        answer.check_returncode()
        (major, minor), origin = json.loads(answer.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        problem = f"no response within {ANSWER_S:g} s"
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        problem = lines[-1] if lines else f"exit status {error.returncode}"
    except OSError as error:
        problem = error.strerror or str(error)
    except (ValueError, TypeError, IndexError):
        problem = "unexpected output"
    else:
        return Interpreter(path, (major, minor), _torch_version(origin))
    raise UsageError(
        f"{path} is not a working Python interpreter ({problem})", "pass --python PATH"
    )


def _torch_version(origin: str | None) -> str | None:
    """Read from torch/version.py, which every wheel contains; "unknown" if it cannot be read."""
    if origin is None:
        return None
    try:
        text = Path(origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"""__version__ = ['"]([^'"]+)['"]""", text)
    return found[1] if found else "unknown"


def require_torch(interpreter: Interpreter) -> list[str]:
    """Refuse an interpreter that cannot run torch elastic the way ddptop uses it.

    Returns:
        A note for the user if ddptop is not tested with its version or that of its torch.

    Raises:
        UsageError: it has no torch, or one that is too old.
    """
    version = interpreter.torch_version
    if version is None:
        raise UsageError(
            f"torch is not installed in {interpreter.path}",
            "activate an environment that has it, or pass --python PATH"
            " (ddptop[torch] installs it alongside ddptop)",
        )
    found = re.match(r"(\d+)\.(\d+)", version)
    torch = (int(found[1]), int(found[2])) if found else MINIMUM_TORCH
    if torch < MINIMUM_TORCH:
        raise UsageError(f"torch {version} in {interpreter.path} is too old", TORCH_REMEDY)
    oldest, newest = TESTED_PYTHONS
    untested = [f"torch {version}"] if torch > NEWEST_TORCH else []
    if not oldest <= interpreter.version <= newest:
        untested.append("Python {}.{}".format(*interpreter.version))
    if not untested:
        return []
    torches, pythons = (
        " to ".join(f"{major}.{minor}" for major, minor in ends)
        for ends in ((MINIMUM_TORCH, NEWEST_TORCH), TESTED_PYTHONS)
    )
    return [
        f"ddptop is not tested with {' and '.join(untested)},"
        f" only with torch {torches} and Python {pythons}"
    ]
