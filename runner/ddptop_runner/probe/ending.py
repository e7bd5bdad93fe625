"""The end of a process: the exception that ends it, and time for gloo's threads to finish.

The interpreter keeps the exception that it prints as a traceback at exit. A child of
multiprocessing is still raising while its finalizers run, and in the child of
`torch.multiprocessing.spawn`, the script's exception is then the context of a SystemExit. (Since
Python 3.13, such a child has forgotten it by then; its parent prints it.)
Exceptions that a script catches, raises in another thread, or uses to leave with `sys.exit` do not
end the process, and neither does an interrupt.

If a gloo worker thread drops its last finished collective while the interpreter shuts down, it asks
for the GIL, is ended by Python, and takes the process with it: "terminate called without an active
exception", SIGABRT, after the training was done (torch 2.13, about one CPU run in ten that ends
right after a collective). Releasing the GIL for a moment before the shutdown lets the thread
finish. NCCL's work holds no such objects.
"""

from __future__ import annotations

import os
import sys
import time

from . import phases

MAX_LENGTH = 200


def ending_exception():
    """(`Type: message`, `file:line in function`) of what ends this process; None if unknown."""
    error = _printed() or _under_way()
    if error is None or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return None, None
    return in_words(error), place(error)


def in_words(error):
    """An exception on one line, like the last line of a traceback."""
    kind = type(error)
    module = getattr(kind, "__module__", None)
    name = str(getattr(kind, "__qualname__", kind.__name__))
    if isinstance(module, str) and module not in ("__main__", "__mp_main__", "builtins"):
        name = module + "." + name
    try:
        message = _gist(str(error))
    except Exception:  # the script's own class may do anything
        message = ""
    text = name + ": " + message if message else name
    return "".join(c if c.isprintable() else "?" for c in text)[:MAX_LENGTH]


def _gist(message):
    """A message on one line; if it quotes another traceback, its first and last line."""
    # cleaning a long message would cost more than the part that is kept is worth
    head, tail = message[: MAX_LENGTH * 4].strip(), message[-MAX_LENGTH * 4 :].strip()
    first = head.partition("\n")[0].strip()
    if "\n" in head and (first.endswith(":") or "Traceback (most recent call last)" in head):
        head = first + " " + tail.rpartition("\n")[2]
    return " ".join(head.split())


def place(error):
    """Where it was raised: the innermost frame of the script; None if there is none."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    # for endless recursion, the innermost frames, and the outermost, which show what the script is
    kept = frames[::-1]
    if len(kept) > phases.MAX_FRAMES:
        kept = [*kept[: phases.MAX_FRAMES - 2], kept[-1]]
    return phases.place(kept)


def _printed():
    """The exception that the interpreter printed because the main module did not catch it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(error, "__traceback__", None)
    if not isinstance(error, BaseException) or trace is None:
        return None
    # one printed in a callback from C was raised below frames that continue
    frame = trace.tb_frame
    return error if frame.f_back is None and _is_main(frame.f_code) else None


def _is_main(code):
    return code.co_name == "<module>" or code.co_filename in ("<frozen runpy>", _runpy_file())


def _runpy_file():
    return getattr(sys.modules.get("runpy"), "__file__", None)


def _under_way():
    """The exception that a child of multiprocessing is raising while it runs its finalizers."""
    error = sys.exc_info()[1]
    trace = getattr(error, "__traceback__", None)
    processes = getattr(sys.modules.get("multiprocessing.process"), "__file__", None)
    # anything else is what the parent was handling when it forked this process
    if error is None or trace is None or trace.tb_frame.f_code.co_filename != processes:
        return None
    if isinstance(error, SystemExit):
        fails = error.code not in (None, 0)
        return error.__context__ if fails and not error.__suppress_context__ else None
    return error


MOMENT_S = 0.1
LONGEST_S = 1.0
"""On a busy machine, a thread is scheduled late."""
LOOK_S = 0.01
GLOO_THREAD = "pt_gloo_runloop"


def gloo_threads(task_dir="/proc/self/task"):
    """The states, as in /proc, of this process's worker threads of torch's gloo backend."""
    try:
        threads = os.listdir(task_dir)
    except OSError:
        return []
    states = []
    for thread in threads:
        try:
            with open(os.path.join(task_dir, thread, "stat")) as file:
                name, _, rest = file.read().partition("(")[2].rpartition(") ")
        except (OSError, ValueError):
            continue
        if name.startswith(GLOO_THREAD):
            states.append(rest[:1])
    return states


def let_gloo_finish():
    """Release the GIL for a moment if gloo threads are left; longer for one that is working."""
    if not gloo_threads():
        return
    deadline_s = time.monotonic() + LONGEST_S
    time.sleep(MOMENT_S)
    while any(state != "S" for state in gloo_threads()) and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
