"""Starts one of ddptop's own processes, run by path: `start.py guardian|supervisor ARGS...`.

Run by path, so that neither the current folder nor the job's PYTHONPATH decides which
modules are imported: this folder, which Python puts first, is taken off the path.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 8 ms


def main() -> int:
    """Run the named process to its end."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    if (parent := os.path.dirname(_HERE)) not in sys.path:  # noqa: PTH120
        sys.path.append(parent)
    name, *arguments = sys.argv[1:]
    if name == "guardian":
        from ddptop_runner.guardian import main as guardian_main

        return guardian_main(*arguments)
    from ddptop_runner.supervisor import main as supervisor_main

    return supervisor_main(*arguments)


if __name__ == "__main__":
    sys.exit(main())
