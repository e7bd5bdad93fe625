"""A terminal for a command whose output is live only on one, and the pump that reads it."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

PUMP_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pump.py")
LINES, COLUMNS = 40, 120
MOST_PUMPS = 100
"""Where pumps cannot run at all, the command is not to be kept company by their starts for ever."""


class Terminal:
    """A pty of its own for one attempt. It is never anybody's controlling terminal.

    Args:
        log: where its output is appended; an open descriptor, which stays the caller's.
        exit_watch: an ExitWatch, which sees the pump end.
    """

    def __init__(self, log, exit_watch):
        self._exit_watch = exit_watch
        self._pumps = 0
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
            self.start_pump()

    def start_pump(self):
        """Begin to read."""
        self._pumps += 1
        pump = subprocess.Popen(
            [sys.executable, "-I", "-S", PUMP_MAIN],
            stdin=self._master,
            stdout=self._log,
            start_new_session=True,
        )
        self._exit_watch.add(pump, {"terminal": self})

    def hand_over(self):
        """The command has the terminal now: its end is seen once all of its processes closed it."""
        os.close(self.slave)

    def close(self):
        """The attempt is over; the pump goes on with what is left to read."""
        os.close(self._master)
        os.close(self._log)
