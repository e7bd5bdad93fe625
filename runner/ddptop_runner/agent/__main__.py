"""Start of the agent, run by path: a plan in JSON on standard input.

The agent of ddptop's own ranks runs under the job's interpreter, that of a command under ddptop's.
"""

import os
import sys

LOADED_FIRST = set(sys.modules)
"""What a new interpreter has loaded."""
FIRST_PATH = list(sys.path)


def search_python_first():
    """Look for modules behind Python's own: in PYTHONPATH's folders, then among what is installed.

    This folder is searched no longer. A `queue.py` of the job's own must not become the agent's,
    but torch may lie where PYTHONPATH says. The ranks' own order is not touched.
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

import importlib.util  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402


def load_package():
    """Make this folder importable as `ddptop_agent`, though it is not on sys.path."""
    here = os.path.dirname(os.path.abspath(__file__))
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

        return agent.run_plan(plan)
    zygote, why_not = None, None
    if plan["zygote"]:
        from ddptop_agent import zygote as zygotes

        zygote, why_not = zygotes.start(plan["command"], LOADED_FIRST, FIRST_PATH)
    from ddptop_agent import run as agent

    return agent.run_plan(plan, zygote, why_not)


if __name__ == "__main__":
    sys.exit(main())
