"""`ddptop doctor` and `setup-host`: check and prepare machines for long training runs."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddptop.output import info, put, put_folded, put_json, table
from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import config_file
from ddptop_runner.launch.doctor import Check, Place, Report, Status, examine
from ddptop_runner.launch.request import parse_hosts, require_distinct
from ddptop_runner.launch.setup_host import install, payload
from ddptop_runner.version import __version__

MARKS: dict[Status, str] = {
    "ok": "ok",
    "warning": "!  warning",
    "error": "!! error",
    "unknown": "?? unknown",
}
INDENT = 12
"""Spaces before the rest of a check that does not fit on its line."""


def run_doctor(as_json: bool, python: str | None) -> int:
    """Print all checks; return 1 if any is an error, otherwise 0."""
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the working directory was deleted", "change to another directory and try again"
        ) from None
    checks = examine(Place(env=dict(os.environ), cwd=folder, python=python))
    if (settings := settings_check()) is not None:
        checks = [*checks, settings]
    if as_json:
        put_json(Report(checks=checks))
    else:
        put_folded(render(checks), INDENT)
    sys.stdout.flush()
    return 1 if any(check.status == "error" for check in checks) else 0


def run_hosts(as_json: bool, python: str | None, hosts: str | None, hostfile: str | None) -> int:
    """Print the table and the checks of other machines; return 1 if any is an error."""
    from ddptop.commands.launch import hosts_of
    from ddptop_runner.launch.doctor import examine_hosts

    asked = hosts_of(hosts, hostfile)
    interpreter = python if python is not None else interpreters.choose(None, os.environ)
    judged, report = examine_hosts(asked, interpreter)
    if as_json:
        put_json(report)
    else:
        put(table(judged.rows[0], judged.rows[1:]))
        for one in report.hosts:
            bad = [check for check in one.checks if check.status != "ok"]
            put(f"\n{one.host}: {_summary(one.checks)}")
            if bad:
                put_folded(_checks_in_lines(bad), INDENT)
    sys.stdout.flush()
    errors = [check for one in report.hosts for check in one.checks if check.status == "error"]
    return 1 if errors else 0


def settings_check() -> Check | None:
    """Return whether config.toml is valid; None if there is none."""
    file = config_file()
    if not file.exists():
        return None
    from ddptop.tui.settings import read_settings

    problems = read_settings().problems
    return Check(
        id="settings",
        title="settings",
        status="warning" if problems else "ok",
        detail="; ".join(problems) or f"{file} is valid",
        remedy=f"fix {file}; run ddptop keys to list all actions" if problems else None,
    )


def render(checks: list[Check]) -> str:
    """Return a line per check, with its remedy below, and a summary line."""
    return f"{_checks_in_lines(checks)}\n\n{_summary(checks)}"


def _checks_in_lines(checks: list[Check]) -> str:
    mark_width = max(len(MARKS[check.status]) for check in checks)
    title_width = max(len(check.title) for check in checks)
    lines = []
    for check in checks:
        head = f"{MARKS[check.status]:<{mark_width}}  {check.title:<{title_width}}  "
        lines.append(f"{head}{check.detail}".rstrip())
        if check.remedy and check.status != "ok":
            lines.append(f"{' ' * len(head)}-> {check.remedy}")
    return "\n".join(lines)


def _summary(checks: list[Check]) -> str:
    errors = sum(check.status == "error" for check in checks)
    others = sum(check.status in ("warning", "unknown") for check in checks)
    if errors:
        return f"{errors} of {len(checks)} checks failed; fix these problems to run jobs reliably."
    if others:
        have = "has a warning" if others == 1 else "have warnings"
        return f"Jobs can run; {others} of {len(checks)} checks {have}."
    return f"All {len(checks)} checks passed."


def run_setup_host(hosts: tuple[str, ...], python: str | None) -> int:
    """Install on all hosts in parallel; return 1 if it failed on any, otherwise 0."""
    names = [one.host for text in hosts for one in parse_hosts(text, "setup-host")]
    require_distinct(parse_hosts(",".join(names), "setup-host"), "setup-host")
    interpreter = python if python is not None else interpreters.choose(None, os.environ)
    data = payload()

    def attempt(host: str) -> str | DdptopError:
        try:
            return install(host, interpreter, data)
        except DdptopError as error:
            return error

    failed = False
    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        for host, done in zip(names, pool.map(attempt, names), strict=True):
            if isinstance(done, DdptopError):
                failed = True
                info(f"ddptop: {done}")
            else:
                put(f"{host}: ddptop {__version__} installed in {done}")
    return 1 if failed else 0
