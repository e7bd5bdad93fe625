"""Damaged files are set aside, never deleted."""

from __future__ import annotations

from pathlib import Path


def set_aside(path: Path) -> str:
    """Rename a damaged file to the first free `<name>.damaged-<n>`; the new name.

    Raises:
        OSError: it cannot be renamed.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    return aside.name
