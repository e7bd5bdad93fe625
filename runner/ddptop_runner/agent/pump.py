"""Copies a command's terminal to its log. Run by path: `pump.py`, terminal on 0, log on 1.

It is a separate process, so that neither the agent's death nor a full disk can block or end the
command. It exits when the last process has closed the terminal.
"""

import os
import select
import signal

CHUNK_BYTES = 65536


def drain_and_leave(*_):
    """Handle a request to end: pending output still goes to the log."""
    os.set_blocking(0, False)


def keep(data):
    """Append to the log; output is lost if the disk is full."""
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        pass


def main():
    """Pump until the terminal is closed."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    wake, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.set_wakeup_fd(notify)  # a signal right before a read would not interrupt it
    signal.signal(signal.SIGTERM, drain_and_leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # see `Terminal.start_pump`
    while True:
        if wake in select.select([0, wake], [], [])[0]:
            drain_and_leave()
        try:
            data = os.read(0, CHUNK_BYTES)
        except OSError:  # closed by all (EIO) or drained
            return
        if not data:
            return
        keep(data)


if __name__ == "__main__":
    main()
