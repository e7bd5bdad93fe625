"""Injects a fault into a job in the background while the user watches the job on screen.

Arguments: JOB KIND RANK.
"""

from __future__ import annotations

import sys

from ddptop.faults.kinds import fault_of
from ddptop.faults.show import tell_all
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import run_folder


def main(job: str, kind: str, rank: str) -> int:
    """Inject the fault, watch the job until it ends, and print what happens."""
    try:
        return tell_all(run_folder(job), fault_of(kind), int(rank), _put)
    except DdptopError as error:
        print(f"ddptop: {error}")  # noqa: T201
        return error.exit_code


def _put(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - into a file that is read meanwhile


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
