"""A spare interpreter: imports torch, then waits to become a rank of the next attempt.

Run by path under the job's interpreter, as `python -u warm.py`. One JSON line on standard input
defines the rank: its variables, its log and its command. Until then the process does nothing; when
standard input ends without a line, it leaves.
"""

import builtins
import json
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader


def main():
    """Import torch, wait for the order, and be that rank."""
    try:
        import torch.distributed
        import torch.nn.parallel  # noqa: F401
    except Exception:  # the rank itself will report it better
        pass
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    order = json.loads(line)
    put_in_place(order)
    run(order["argv"])


def put_in_place(order):
    """Take the rank's variables, its standard streams and its probe."""
    os.environ.clear()
    os.environ.update(order["env"])
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    if order["probe"]:
        try:
            runpy.run_path(order["probe"])
        except ImportError:
            pass  # there is no other sitecustomize behind it
        except Exception:  # a job must run even where its probe cannot
            pass


def run(argv):
    """Run `script ARGS` or `-m module ARGS` as the interpreter itself would."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    is_module = argv[0] == "-m"
    if not getattr(sys.flags, "safe_path", False):
        first = os.getcwd() if is_module else os.path.dirname(os.path.abspath(argv[0]))
        sys.path[0] = first
    sys.modules["__main__"] = module
    if is_module:
        sys.argv[:] = argv[1:]
        call(lambda: runpy._run_module_as_main(argv[1]))  # type: ignore[attr-defined]
        return
    path = os.path.abspath(argv[0])
    sys.argv[:] = argv
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__dict__["__cached__"] = None
    with open(path, "rb") as file:
        source = file.read()
    call(lambda: exec(compile(source, path, "exec", dont_inherit=True), module.__dict__))


def call(body):
    """Call it; an exception is reported without the frames of this file."""
    try:
        body()
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


_OWN_FILES = (__file__, "<frozen runpy>", runpy.__file__)

if __name__ == "__main__":
    main()
