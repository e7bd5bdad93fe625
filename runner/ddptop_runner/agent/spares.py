"""Spare interpreters for the next attempt: started, torch imported, waiting.

A restart then costs no start of Python and no import of torch. Each spare is a child of the agent
and becomes the rank itself, so that its pid and its exit are the rank's.
"""

import json
import os
import subprocess
import threading

WARM_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "warm.py")
SPARES_AFTER_S = 10.0
"""How long a new attempt has the machine for itself before its successors' interpreters start."""


class Spares:
    """Keeps as many spares as there are ranks.

    Args:
        python: the job's interpreter.
        probe_file: the probe's sitecustomize.py, None without a probe.
    """

    def __init__(self, python, probe_file):
        self._python = python
        self._probe_file = probe_file
        self._lock = threading.Lock()
        self._waiting = []
        self._timer = None

    def pids(self):
        """Of the spares that wait."""
        with self._lock:
            return [spare.pid for spare in self._waiting if spare.poll() is None]

    def replenish_later(self, count):
        """Start what is missing to `count`, once the attempt has begun to train."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(SPARES_AFTER_S, self._replenish, (count,))
        self._timer.daemon = True
        self._timer.start()

    def _replenish(self, count):
        with self._lock:
            self._waiting = [spare for spare in self._waiting if spare.poll() is None]
            for _ in range(count - len(self._waiting)):
                try:
                    self._waiting.append(self._start())
                except OSError:
                    return  # no memory or no processes left: the next attempt starts without

    def _start(self):
        return subprocess.Popen(
            [self._python, "-u", WARM_MAIN], stdin=subprocess.PIPE, start_new_session=True
        )

    def take(self, argv, env, log):
        """Make a spare the rank with this `argv`.

        Args:
            argv: `script ARGS` or `-m module ARGS`.
            env: all of its variables.
            log: where its output is appended.

        Returns:
            Its process handle, or None where no spare is there.
        """
        order = {
            "argv": list(argv),
            "env": env,
            "log": log,
            "probe": self._probe_file,
        }
        data = json.dumps(order).encode("ascii") + b"\n"
        with self._lock:
            while self._waiting:
                spare = self._waiting.pop()
                if spare.poll() is not None:
                    continue
                try:
                    spare.stdin.write(data)
                    spare.stdin.close()
                except OSError:
                    continue  # it died this moment
                return spare
        return None
