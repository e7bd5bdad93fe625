"""Starts ddptop's own processes, and sets their module search path and umask.

`own_command` is the command line of such a process. It runs this file by path and Python with -E,
so that neither the current directory nor PYTHONPATH is searched while the interpreter starts.
Otherwise, anyone who can write to the working directory, or a project with its own `queue.py`,
could decide what ddptop imports. Later, absolute entries of PYTHONPATH are searched last, because
ddptop itself may be there; relative entries depend on the current directory and are never searched.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 8 ms
_FILE = os.path.join(_HERE, "start.py")  # noqa: PTH118
_ENDING = "/ddptop_runner/base/start.py"

PRIVATE = 0o077
_shell_umask: int | None = None


def own_command(name: str, *arguments: str) -> list[str]:
    """The argv of one of ddptop's own processes.

    Args:
        name: `guardian`, `supervisor`, `node`, or a module that would be run with -m.
        arguments: the arguments that follow.
    """
    flags = ["-s"] if sys.flags.no_user_site else []
    flags += ["-B"] if sys.dont_write_bytecode else []
    flags += ["-Xutf8"] if sys.flags.utf8_mode else []
    return [sys.executable, "-E", *flags, _FILE, name, *arguments]


def own_words(argv: list[str]) -> list[str]:
    """Name and arguments in the command line of one of ddptop's own processes; [] for others."""
    for number, word in enumerate(argv[1:6], 1):
        if not word.startswith("-"):
            return argv[number + 1 :] if word.endswith(_ENDING) else []
    return []


def searched(path: list[str], python_path: str) -> list[str]:
    """The order in which modules are searched for.

    Args:
        path: `sys.path` as Python created it.
        python_path: the value of PYTHONPATH.
    """
    named = python_path.split(os.pathsep) if python_path else []
    absolute = [os.path.abspath(entry) for entry in named]  # noqa: PTH100
    kept = [entry for entry in path if entry not in ("", _HERE) and entry not in absolute]
    last = [folder for entry, folder in zip(named, absolute, strict=True) if os.path.isabs(entry)]  # noqa: PTH117
    found = dict.fromkeys([*kept, *_packages(), *last])
    return list(found)


def _packages() -> list[str]:
    """The folders that contain ddptop's two packages: one, or two in a checkout."""
    parent = os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
    above = os.path.dirname(parent)  # noqa: PTH120
    in_checkout = os.path.isfile(os.path.join(above, "ddptop", "__main__.py"))  # noqa: PTH113, PTH118
    return [parent, above] if in_checkout else [parent]


def search_safely() -> None:
    """Set this process's `sys.path` to that order."""
    sys.path[:] = searched(sys.path, os.environ.get("PYTHONPATH", ""))
    _import_msgspec()


def _import_msgspec() -> None:
    """Import it without typing_extensions, from which it only uses what `typing` also has.

    That import takes a third of the time of `ddptop ls`.
    """
    if "typing_extensions" not in sys.modules:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
        import msgspec  # noqa: F401

        del sys.modules["typing_extensions"]


def main() -> int:
    """Run the named process until it ends."""
    search_safely()
    name, *arguments = sys.argv[1:]
    if name in ("guardian", "supervisor", "node"):
        import importlib

        module = "remote" if name == "node" else name
        status: int = importlib.import_module(f"ddptop_runner.node.{module}").main(*arguments)
        return status
    import runpy

    sys.argv[1:] = arguments
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    return 0


def keep_files_private() -> None:
    """Make files that this process creates private, regardless of the shell's umask."""
    global _shell_umask
    before = os.umask(PRIVATE)
    if _shell_umask is None:
        _shell_umask = before


def shell_umask() -> int:
    """The umask that this process was started with, which jobs inherit."""
    if _shell_umask is not None:
        return _shell_umask
    umask = os.umask(PRIVATE)
    os.umask(umask)
    return umask


if __name__ == "__main__":
    sys.exit(main())
