"""Starts one of ddptop's own processes, run by path: `start.py guardian|supervisor ARGS...`.

Run by path, so that neither the current folder nor the job's PYTHONPATH decides which
modules are imported: this folder, which Python puts first, is taken off the path, and what
PYTHONPATH names comes last, so that a `queue.py` of the person's hides no module of Python.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 8 ms


def searched(path: list[str], python_path: str) -> list[str]:
    """In which order modules are looked for.

    Args:
        path: `sys.path` as Python made it.
        python_path: the variable PYTHONPATH.
    """
    parent = os.path.dirname(_HERE)  # noqa: PTH120
    given = {os.path.abspath(entry) for entry in python_path.split(os.pathsep) if entry}  # noqa: PTH100
    given.discard(parent)
    kept = [entry for entry in path if entry != _HERE]
    first = [entry for entry in kept if entry not in given]
    if parent not in first:
        first.append(parent)
    return first + [entry for entry in kept if entry in given]


def main() -> int:
    """Run the named process to its end."""
    sys.path[:] = searched(sys.path, os.environ.get("PYTHONPATH", ""))
    name, *arguments = sys.argv[1:]
    if name == "guardian":
        from ddptop_runner.guardian import main as guardian_main

        return guardian_main(*arguments)
    from ddptop_runner.supervisor import main as supervisor_main

    return supervisor_main(*arguments)


if __name__ == "__main__":
    sys.exit(main())
