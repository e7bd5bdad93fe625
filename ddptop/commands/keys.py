"""`ddptop keys`: every action of the screens with its key, the reference for `[keys]`."""

from __future__ import annotations

import sys

from ddptop.job import keys as table
from ddptop.output import put, put_json
from ddptop.tui.settings import read_settings
from ddptop_runner.base.paths import config_file
from ddptop_runner.model.words import Base


class KeyLine(Base, frozen=True, kw_only=True):
    """One action on one screen."""

    id: str
    """ID to use in `[keys]`."""
    screen: str
    """Screen where it applies."""
    keys: tuple[str, ...]
    """Current keys; empty if none."""
    default_keys: tuple[str, ...]
    """Keys without changes in `config.toml`."""
    name: str
    """Short name, as in the key bar."""
    help: str


class KeyReport(Base, frozen=True, kw_only=True):
    """What `keys --json` prints."""

    schema: int = 1
    file: str
    """Path of `config.toml`."""
    keys: list[KeyLine]
    problems: list[str]
    """Errors in the settings of the interface."""


def run_keys(as_json: bool) -> int:
    """Print the actions; return 1 if any setting is invalid, otherwise 0."""
    settings = read_settings()
    table.use(settings.keys)
    problems = list(settings.problems)
    report = KeyReport(file=str(config_file()), keys=key_lines(), problems=problems)
    if as_json:
        put_json(report)
    else:
        put(render(report))
    sys.stdout.flush()
    return 1 if report.problems else 0


def key_lines() -> list[KeyLine]:
    """Each action of each screen, with the keys in use."""
    return [
        KeyLine(
            id=action.id,
            screen=screen,
            keys=action.keys,
            default_keys=tuple(action.defaults.split()),
            name=action.name,
            help=action.help,
        )
        for screen, actions in table.TABLES.items()
        for action in actions
    ]


def render(report: KeyReport) -> str:
    """Return a table per screen, followed by the problems."""
    wide = max(len(line.id) for line in report.keys)
    key_wide = max(len(" ".join(line.keys)) for line in report.keys)
    lines: list[str] = []
    screen = None
    for line in report.keys:
        if line.screen != screen:
            screen = line.screen
            lines += [*([""] if lines else []), screen]
        keys = " ".join(line.keys) or "none"
        changed = "  (changed)" if line.keys != line.default_keys else ""
        lines.append(f"  {keys:<{key_wide}}  {line.id:<{wide}}  {line.help}{changed}")
    lines += ["", f'to change keys, edit {report.file}, for example:  [keys]  "job.stop" = "X"']
    if report.problems:
        lines += ["", *(f"!  {problem}" for problem in report.problems)]
    return "\n".join(lines)
