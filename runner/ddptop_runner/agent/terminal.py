"""A pseudo-terminal for a command that shows progress only on one, and the pump that reads it."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import threading

PUMP_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pump.py")
LINES, COLUMNS = 40, 120
MOST_PUMPS = 100
"""Where pumps cannot run at all, the command is not to be kept company by their starts for ever."""
START_AGAIN_S = 1.0
"""After a pump that could not be started: no processes or no memory are left."""


class Terminal:
    """A pty of its own for one attempt. It is never anybody's controlling terminal.

    Args:
        log: where its output is appended; an open descriptor, which stays the caller's.
        exit_watch: an ExitWatch, which sees the pump end.
    """

    def __init__(self, log, exit_watch):
        self._exit_watch = exit_watch
        self._pumps = 0
        self._lock = threading.Lock()
        self._is_closed = False
        self._log = os.dup(log)
        self._master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", LINES, COLUMNS, 0, 0))
        modes = termios.tcgetattr(self.slave)
        modes[1] &= ~termios.OPOST  # "\n" stays what it is
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.start_pump()

    def pump_ended(self, returncode):
        """One that was killed has left output behind: start another, but not for ever."""
        if returncode != 0 and self._pumps < MOST_PUMPS:
            try:
                self.start_pump()
            except OSError:
                timer = threading.Timer(START_AGAIN_S, self.pump_ended, (returncode,))
                timer.daemon = True
                timer.start()

    def start_pump(self):
        """Begin to read, unless this is closed."""
        with self._lock:
            if self._is_closed:
                return
            self._pumps += 1
            # one that is asked to end while it starts would end before it has read anything
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            try:
                pump = subprocess.Popen(
                    [sys.executable, "-I", "-S", PUMP_MAIN],
                    stdin=self._master,
                    stdout=self._log,
                    start_new_session=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._exit_watch.add(pump, {"terminal": self})

    def hand_over(self):
        """The command has the terminal now: its end is seen once all of its processes closed it."""
        os.close(self.slave)

    def close(self):
        """The attempt is over; the pump goes on with what is left to read."""
        with self._lock:
            self._is_closed = True
            os.close(self._master)
            os.close(self._log)
