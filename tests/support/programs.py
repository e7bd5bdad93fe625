"""Programs that tests run to their end, or talk to through pipes."""

from __future__ import annotations

import subprocess
from typing import Any


def captured(*argv: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with what it prints as text."""
    options = {"capture_output": True, "text": True, "check": False, **options}
    return subprocess.run(argv, **options)


def piped(*argv: Any, **options: Any) -> subprocess.Popen[Any]:
    """Start a program whose stdin and stdout are pipes for text."""
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, **{"stdin": pipe, "stdout": pipe, "text": True, **options})
