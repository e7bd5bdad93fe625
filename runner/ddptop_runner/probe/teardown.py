"""Leaving in peace: torch's gloo threads may still hold Python objects when a script has ended.

A gloo worker thread that drops its last finished collective while the interpreter is going down
asks for the GIL, is ended by Python, and takes the process with it: "terminate called without an
active exception", SIGABRT, after the training was done (torch 2.13, about one CPU run in ten that
ends right after a collective). A moment without the GIL before the interpreter goes down lets the
thread finish. NCCL's work holds no such objects.
"""

import os
import time

MOMENT_S = 0.1
LONGEST_S = 1.0
"""On a machine with much to do a thread comes to its turn late."""
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
    """Wait a moment, with the GIL released, where gloo threads are left; longer for one at work."""
    if not gloo_threads():
        return
    deadline_s = time.monotonic() + LONGEST_S
    time.sleep(MOMENT_S)
    while any(state != "S" for state in gloo_threads()) and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
