"""The agent for a command: starts it, reports its exit, and restarts it on request.

It runs under ddptop's interpreter, because the command may not be Python, and talks to the
supervisor like the agent for ddptop's own ranks (see `elastic`). The command is its only worker,
without a rank. The supervisor ends whatever the command starts.
"""

import fcntl
import os
import queue
import signal
import struct
import subprocess
import sys
import termios
import threading

from .run import AgentBase, attempt_variables, make_logs, run_and_exit

LOG_NAME = "launcher.log"
PUMP_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pump.py")
LINES, COLUMNS = 40, 120
MOST_PUMPS = 100
"""Limit for starting pumps, in case they cannot run at all."""


class CommandAgent(AgentBase):
    """One run of the agent: from the plan to the end of the command."""

    def __init__(self, plan):
        self._attempt = plan["attempt"]
        self._started = (self._attempt, None)  # type: tuple
        """(the last attempt started, its process); the link's thread reads both."""
        self._terminal = None
        self._restart_asked = False
        self._news = queue.Queue()  # type: queue.Queue
        super().__init__(plan)

    def run(self):
        """Run the command until it has ended for good; returns False if it cannot be started."""
        while not self._stopping:
            try:
                process = self._start()
            except OSError as error:
                command = self._plan["command"][0]
                sys.stderr.write("ddptop: cannot start %s: %s\n" % (command, error.strerror))
                return False
            if not self._ends_and_goes_on(process):
                break
            self._attempt += 1
        # a supervisor that is not up yet, or not anymore, must learn how the command ended
        self._link.ask({"kind": "ended"})
        return True

    def _ends_and_goes_on(self, process):
        """Wait for the attempt's end; returns whether another one follows."""
        while process.returncode is None and not self._restart_asked:
            self._news.get()
        if self._stopping:
            return False
        if not self._restart_asked:
            if process.returncode == 0:
                return False
            self._link.ask({"kind": "failing", "attempt": self._attempt})
            answer = self._link.ask(dict(self._describe(), kind="torn_down"))
            if not answer["restart"]:
                return False
        self._link.ask({"kind": "group_stopped", "attempt": self._attempt})
        return not self._stopping

    def _start(self):
        self._restart_asked = False
        plan = self._plan
        folder = make_logs(plan["logs_dir"], self._attempt, [LOG_NAME])
        log = os.open(os.path.join(folder, LOG_NAME), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._change_terminal(None)
            if plan["pty"]:
                self._change_terminal(Terminal(log, self._exit_watch))
            output = log if self._terminal is None else self._terminal.slave
            process = subprocess.Popen(
                plan["command"],
                env=command_environment(os.environ, plan, self._attempt),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(log)
            if self._terminal is not None:
                self._terminal.hand_over()
        self._started = (self._attempt, process)
        # before its exit can be reported
        self._link.report(dict(self._describe(), type="group_started"))
        self._exit_watch.add(process, {"attempt": self._attempt})
        return process

    def _change_terminal(self, terminal):
        before, self._terminal = self._terminal, terminal
        if before is not None:
            before.close()

    def _describe(self):
        attempt, process = self._started
        worker = {"rank": None, "local_rank": 0}
        if process is not None:
            worker.update(pid=process.pid, returncode=process.returncode)
        return {
            "attempt": attempt,
            "workers": [] if process is None else [worker],
        }

    def _on_exit(self, process, about):
        if "terminal" in about:
            if about["terminal"] is self._terminal:
                self._terminal.pump_ended(process.returncode)
            return
        super()._on_exit(process, about)
        self._news.put(None)

    def _on_command(self, message):
        kind = message["order"]
        if kind == "stopping":
            self._stopping = True
            if self._started[1] is None:
                os._exit(0)  # nothing has been started yet
        elif kind == "restart_group":
            self._restart_asked = True
        self._news.put(None)


def command_environment(inherited, plan, attempt):
    """All variables of the command: inherited ones, the job's, and those for the probe."""
    env = dict(inherited)
    env.setdefault("PYTHONUNBUFFERED", "1")
    if plan["pty"] and env.get("TERM", "dumb") == "dumb":
        env["TERM"] = "xterm-256color"
    env["DDPTOP_JOB_ID"] = plan["job_id"]
    env.update(attempt_variables(plan, attempt, inherited))
    return env


class Terminal:
    """A pty for one attempt. It is never any process's controlling terminal.

    Args:
        log: the open descriptor to which output is appended; the caller keeps it.
        exit_watch: an ExitWatch, which reports the pump's end.
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
        modes[1] &= ~termios.OPOST  # "\n" stays unchanged
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.start_pump()

    def pump_ended(self, returncode):
        """Start another pump, up to a limit, if one was killed, because it left output behind."""
        if returncode != 0 and self._pumps < MOST_PUMPS:
            self.start_pump()

    def start_pump(self):
        """Begin to read, unless closed."""
        with self._lock:
            if self._is_closed:
                return
            self._pumps += 1
            # a pump asked to end while it starts would end before it has read anything
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
        """Close our end, so that the terminal ends once all of the command's processes close it."""
        os.close(self.slave)

    def close(self):
        """End the attempt; the pump continues with what is left to read."""
        with self._lock:
            self._is_closed = True
            os.close(self._master)
            os.close(self._log)


def run_plan(plan):
    """Run the command; the exit status shows only whether it could be run."""
    run_and_exit(CommandAgent(plan))
