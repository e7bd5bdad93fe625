"""Starts the agent; run by path, with a JSON plan on standard input.

The agent for ddptop's own ranks runs under the job's interpreter; that for a command, under
ddptop's.
"""

import os
import sys

LOADED_FIRST = set(sys.modules)
"""Modules that a new interpreter has loaded."""
FIRST_PATH = list(sys.path)


def search_python_first():
    """Search Python's own modules first, then PYTHONPATH's folders, then installed packages.

    This folder is no longer searched. The job's own `queue.py` must not become the agent's, but
    torch may be in a folder of PYTHONPATH. The ranks' search order is unchanged.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    library = os.path.dirname(os.path.abspath(os.__file__))
    own = (library, os.path.join(library, "lib-dynload"))

    def is_pythons(entry):
        is_archive = os.path.dirname(entry) == os.path.dirname(library) and entry.endswith(".zip")
        return entry in own or is_archive

    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path[:] = sorted(path, key=lambda entry: not is_pythons(entry))


search_python_first()

import gc  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402


def load_package():
    """Make this folder importable as `ddptop_agent`, even though it is not on sys.path."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "ddptop_agent", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None and spec.loader is not None  # an existing file always has both
    package = importlib.util.module_from_spec(spec)
    sys.modules["ddptop_agent"] = package
    spec.loader.exec_module(package)


def main():
    """Read the plan and run the ranks or the command; the exit status shows only whether it ran."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # every rank inherits this across exec
    # not ignored, because ranks would inherit that: some trainers end on SIGINT, not on SIGTERM
    signal.signal(signal.SIGINT, lambda *_: None)
    plan = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    load_package()
    if plan["kind"] == "command":
        from ddptop_agent import command as agent  # type: ignore[import-not-found]

        return agent.run_plan(plan)
    gc.disable()  # imports leave almost no garbage, and looking for it takes a third of their time
    zygote, why_not = None, None
    if plan["zygote"]:
        from ddptop_agent import zygote as zygotes

        zygote, why_not = zygotes.start(plan["command"], LOADED_FIRST, FIRST_PATH)
    from ddptop_agent import run as agent

    return agent.run_plan(plan, zygote, why_not)


if __name__ == "__main__":
    sys.exit(main())
