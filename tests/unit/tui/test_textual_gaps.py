"""Private names of Textual are used in one module, so that an upgrade has one place to check."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import ddptop
import pytest
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import ModalScreen
from textual.widgets import Input

ROOT = Path(ddptop.__file__).parent
GAPS = ROOT / "tui" / "textual_gaps.py"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_of(one: type) -> set[str]:
    """What a class defines, and what its methods assign to `self`."""
    assigned = re.findall(r"self\.(\w+)(?::[^=\n]+)? = ", inspect.getsource(one))
    return {name for name in (*vars(one), *assigned) if _is_private(name)}


@functools.cache
def private_names() -> set[str]:
    """Those of the classes that ddptop's own classes inherit from."""
    bases = (App, ModalScreen, Input, LinuxDriver)
    classes = {
        one for base in bases for one in base.__mro__ if one.__module__.startswith("textual")
    }
    return {name for one in classes for name in names_of(one)}


def used_in(path: Path) -> set[str]:
    """Private names of Textual in a file: imported, called, read, or overridden."""
    tree, found = ast.parse(path.read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("textual"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found |= {name for name in names if _is_private(name)}
        elif isinstance(node, ast.Attribute) and node.attr in private_names():
            if not (isinstance(node.value, ast.Name) and node.value.id == "os"):
                found.add(node.attr)
        elif isinstance(node, ast.ClassDef) and node.bases:
            defined = {getattr(one, "name", "") for one in node.body}
            found |= defined & private_names()
    return found


@pytest.mark.parametrize("room", ["tui", "serve"])
def test_private_names_of_textual_are_in_one_module(room: str) -> None:
    files = [path for path in (ROOT / room).rglob("*.py") if path != GAPS]
    assert {str(path): names for path in files if (names := used_in(path))} == {}


def test_the_search_finds_them() -> None:
    assert {"_shutdown", "_handle_exception", "_attach"} <= used_in(GAPS)
    assert {"_styles_cache", "_character_to_key", "_writer_thread"} & used_in(GAPS)


IMPORTS_WITHIN = """
from ddptop.tui.textual_gaps import QuietApp
class Opened(QuietApp):
    def on_mount(self):
        import ddptop_runner.host.tmux_server
        self.exit("imported")
app = Opened()
raise SystemExit(app.run(headless=True) != "imported")
"""


def test_libtmux_can_be_imported_while_the_interface_runs():
    """It reads an attribute of stdout, which Textual replaces; a launch or an adoption needs it."""
    done = subprocess.run([sys.executable, "-c", IMPORTS_WITHIN], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
