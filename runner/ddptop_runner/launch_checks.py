"""What a launch is refused for before anything is done: names, folders, scripts, variables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddptop_runner.errors import UsageError


def require_text(words: Iterable[str]) -> None:
    """What goes into `job.json` must be text; bytes that are none arrive as surrogates.

    Raises:
        UsageError: naming the word that is none.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{os.fsencode(word)!r} is not UTF-8 text", "rename it, or give it by --env"
            ) from None


def folder_of(path: str | None) -> Path:
    """The working folder of a job; the one that we are in where none is given.

    Raises:
        UsageError: when there is none.
    """
    try:
        folder = Path(path).expanduser().absolute() if path else Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the folder that you are in was deleted", "go to another, or give --cwd DIR"
        ) from None
    if not folder.is_dir():
        raise UsageError(f"--cwd {path}: there is no such folder", "create it or give another")
    return folder


def require_probe(option: str, *, probe: bool) -> None:
    """Raises UsageError unless the ranks get a probe, without which `option` could do nothing."""
    if not probe:
        raise UsageError(
            f"{option} needs the probe, which --no-probe leaves out", "drop one of them"
        )


def require_script(cwd: Path, script: str) -> None:
    """Raises UsageError unless there is such a script, seen from `cwd`, that can be read."""
    path = cwd / script
    if not script:
        raise UsageError("the script's name is empty", "ddptop launch train.py")
    if path.is_dir():
        raise UsageError(f"{script} is a folder", "give the script itself, or -m MODULE")
    if not path.exists():
        raise UsageError(f"there is no script {script} in {cwd}", "check the path, or give --cwd")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} cannot be read", "check its permissions")


def overrides_of(pairs: Sequence[str]) -> dict[str, str]:
    """The variables given as `K=V`.

    Raises:
        UsageError: naming what has another form.
    """
    overrides = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {pair}: not of the form NAME=VALUE", "write --env NAME=VALUE")
        overrides[name] = value
    return overrides
