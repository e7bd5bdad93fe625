"""`ddptop setup-host`: install this version of ddptop on other machines."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from ddptop.plain.output import info, put
from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.launch.request import parse_hosts, require_distinct
from ddptop_runner.launch.setup_host import install, payload
from ddptop_runner.version import __version__


def run(hosts: tuple[str, ...], python: str | None) -> int:
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
