"""Commits a fault on a job from the background, while a person watches the job on screen.

Its arguments: JOB KIND RANK.
"""

from __future__ import annotations

import sys

from ddptop.faults.kinds import fault_of
from ddptop.faults.show import tell_all
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import run_folder


def main(job: str, kind: str, rank: str) -> int:
    """Commit it, watch to the end; what is told goes to stdout."""
    try:
        return tell_all(run_folder(job), fault_of(kind), int(rank), _put)
    except DdptopError as error:
        print(f"ddptop: {error}")  # noqa: T201
        return error.exit_code


def _put(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - into a file that is read meanwhile


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
