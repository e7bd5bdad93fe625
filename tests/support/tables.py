"""Tables of cases that lie beside a test, in a TOML file of its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def table(test_file: str, name: str) -> Any:
    """The cases of that name: a list, or a dictionary by what each case says."""
    return msgspec.toml.decode(Path(test_file).with_suffix(".toml").read_bytes())[name]
