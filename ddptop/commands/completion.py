"""`ddptop completion`: the script that completes commands in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

from ddptop.output import put

COMPLETE_VARIABLE = "_DDPTOP_COMPLETE"
"""Set by click's completion scripts; click derives the same name from the program name."""


def run_completion(command: click.Command, shell: str) -> int:
    """Print the script for a command line."""
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    put(completer(command, {}, "ddptop", COMPLETE_VARIABLE).source())
    return 0
