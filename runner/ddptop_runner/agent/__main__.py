"""Start of the agent, run by path: a plan in JSON on standard input.

The agent of ddptop's own ranks runs under the job's interpreter, that of a command under ddptop's.
"""

import importlib.util
import json
import os
import signal
import sys


def load_package():
    """Make this folder importable as `ddptop_agent`, without leaving it on sys.path."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.util.spec_from_file_location(
        "ddptop_agent", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None and spec.loader is not None  # a file that exists always has both
    package = importlib.util.module_from_spec(spec)
    sys.modules["ddptop_agent"] = package
    spec.loader.exec_module(package)


def main():
    """Read the plan, then run ranks or command until they end; the exit status says only that."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by every rank over exec
    # not ignored, which would be inherited as well: some trainers end on SIGINT, not on SIGTERM
    signal.signal(signal.SIGINT, lambda *_: None)
    plan = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    load_package()
    if plan["kind"] == "command":
        from ddptop_agent import command as agent  # type: ignore[import-not-found]
    else:
        from ddptop_agent import run as agent
    return agent.run_plan(plan)


if __name__ == "__main__":
    sys.exit(main())
