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
GLOO_THREAD = "pt_gloo_runloop"


def has_gloo_threads(task_dir="/proc/self/task"):
    """Whether this process has worker threads of torch's gloo backend."""
    try:
        threads = os.listdir(task_dir)
    except OSError:
        return False
    for thread in threads:
        try:
            with open(os.path.join(task_dir, thread, "comm")) as file:
                if file.read().startswith(GLOO_THREAD):
                    return True
        except OSError:
            continue
    return False


def let_gloo_finish():
    """Wait a moment, with the GIL released, where gloo threads are left."""
    if has_gloo_threads():
        time.sleep(MOMENT_S)
