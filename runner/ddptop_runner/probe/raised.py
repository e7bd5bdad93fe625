"""The exception that ends this process, asked for while the process goes down.

The interpreter keeps what it prints as a traceback at the end; a child of multiprocessing is still
raising while its finalizers run, and the child of `torch.multiprocessing.spawn` then holds the
script's exception as the context of a SystemExit. Whatever a script catches and survives, leaves
by `sys.exit`, or raises in another thread, ends nothing here. Neither does an interrupt.
"""

from __future__ import annotations

import sys

from . import standing

MAX_LENGTH = 200


def ending_exception():
    """(`Type: message`, `file:line in function`) of what ends this process, each None without."""
    error = _printed() or _under_way()
    if error is None or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return None, None
    return in_words(error), place(error)


def in_words(error):
    """An exception in one line, as a traceback's last line names it."""
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
    """A message in one line; of one that quotes another's traceback, its first and last line."""
    # a long message would cost more to clean than the part that is kept
    head, tail = message[: MAX_LENGTH * 4].strip(), message[-MAX_LENGTH * 4 :].strip()
    first = head.partition("\n")[0].strip()
    if "\n" in head and (first.endswith(":") or "Traceback (most recent call last)" in head):
        head = first + " " + tail.rpartition("\n")[2]
    return " ".join(head.split())


def place(error):
    """Where it was raised: the innermost frame of the script, None without one."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    # the innermost of an endless recursion, and the outermost, which tells what the script is
    kept = frames[::-1]
    if len(kept) > standing.MAX_FRAMES:
        kept = [*kept[: standing.MAX_FRAMES - 2], kept[-1]]
    return standing.place(kept)


def _printed():
    """What the interpreter printed because the main module did not catch it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = getattr(error, "__traceback__", None)
    if not isinstance(error, BaseException) or trace is None:
        return None
    # one printed in a callback from C was raised below frames that live on
    frame = trace.tb_frame
    return error if frame.f_back is None and _is_main(frame.f_code) else None


def _is_main(code):
    return code.co_name == "<module>" or code.co_filename in ("<frozen runpy>", _runpy_file())


def _runpy_file():
    return getattr(sys.modules.get("runpy"), "__file__", None)


def _under_way():
    """What a child of multiprocessing is raising while it runs its finalizers."""
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
