"""The agent of a job that is a command: starts it, reports its exit, and restarts it on request.

It runs under ddptop's own interpreter, for the command may be no Python, and speaks to the
supervisor as the agent of ddptop's own ranks does (see `elastic`). The command is its one worker,
under the rank `LAUNCHER`. Whatever the command starts is the supervisor's to end.
"""

import os
import queue
import subprocess
import sys
import traceback

from .attempt_logs import make_logs
from .link import ExitWatch, SupervisorLink
from .run import clock
from .terminal import Terminal

LAUNCHER = -1
"""As in ddptop_runner.model.snapshot, which is not to be imported here."""
LOG_NAME = "launcher.log"


class CommandAgent:
    """One run of the agent: from the plan to the end of the command.

    Args:
        plan: the agent's plan.
    """

    def __init__(self, plan):
        self._plan = plan
        self._attempt = plan["attempt"]
        self._started = (self._attempt, None)  # type: tuple
        """The attempt that was started last, with its process; the link's thread reads both."""
        self._terminal = None
        self._exits = []
        self._stopping = False
        self._restart_asked = False
        self._news = queue.Queue()  # type: queue.Queue
        self._exit_watch = ExitWatch(self._on_exit)
        self._link = SupervisorLink(plan["control_socket"], self._hello, self._on_command)
        self._link.start()

    def run(self):
        """Run the command until it has ended for good; False where it cannot be started."""
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
        # a supervisor that is not there yet, or not any more, must learn how the command ended
        self._link.ask({"type": "ended"})
        return True

    def _ends_and_goes_on(self, process):
        """Wait for the attempt's end; whether another one follows."""
        while process.returncode is None and not self._restart_asked:
            self._news.get()
        if self._stopping:
            return False
        if not self._restart_asked:
            if process.returncode == 0:
                return False
            self._link.ask({"type": "failing", "attempt": self._attempt, "ranks": [LAUNCHER]})
            answer = self._link.ask(dict(self._describe(), type="torn_down"))
            if not answer["restart"]:
                return False
        self._link.ask({"type": "group_stopped", "attempt": self._attempt})
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
        self._link.tell(dict(self._describe(), type="group_started"))  # its end is told after that
        self._exit_watch.add(process, {"attempt": self._attempt, "rank": LAUNCHER})
        return process

    def _change_terminal(self, terminal):
        before, self._terminal = self._terminal, terminal
        if before is not None:
            before.close()

    def _describe(self):
        attempt, process = self._started
        worker = {"rank": LAUNCHER, "local_rank": 0}
        if process is not None:
            worker.update(pid=process.pid, returncode=process.returncode)
        return {
            "attempt": attempt,
            "keeper_pid": None,
            "workers": [] if process is None else [worker],
        }

    def _hello(self):
        state = self._describe()
        exits = [exit_ for exit_ in self._exits if exit_["attempt"] == state["attempt"]]
        return dict(state, op="agent", pid=os.getpid(), exits=exits)

    def _on_exit(self, process, about):
        if "terminal" in about:
            if about["terminal"] is self._terminal:
                self._terminal.pump_ended(process.returncode)
            return
        message = dict(
            about,
            type="rank_exited",
            pid=process.pid,
            returncode=process.returncode,
            at_boottime_s=clock(),
        )
        self._exits = [*self._exits[-7:], message]
        self._link.tell(message)
        self._news.put(None)

    def _on_command(self, message):
        kind = message.get("type")
        if kind == "stopping":
            self._stopping = True
            if self._started[1] is None:
                os._exit(0)  # nothing was started yet
        elif kind == "restart_group":
            self._restart_asked = True
        self._news.put(None)


def command_environment(inherited, plan, attempt):
    """All variables of the command: what it inherits, whose it is, and its processes' probe."""
    env = dict(inherited)
    env.setdefault("PYTHONUNBUFFERED", "1")
    if plan["pty"] and env.get("TERM", "dumb") == "dumb":
        env["TERM"] = "xterm-256color"
    env["DDPTOP_JOB_ID"] = plan["job_id"]
    env["DDPTOP_ATTEMPT"] = str(attempt)
    env["DDPTOP_CHECKPOINT_FILE"] = plan["save_flag"]
    if plan["probe_dir"]:
        env["DDPTOP_PROBE_SOCK"] = plan["probe_socket"]
        env["DDPTOP_STACKS_DIR"] = plan["stacks_dir"]
        env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [plan["probe_dir"], inherited.get("PYTHONPATH")])
        )
    return env


def run_plan(plan):
    """Run the command; the exit status says only whether it could be run."""
    try:
        good = CommandAgent(plan).run()
    except BaseException:
        sys.stderr.write("ddptop: the agent failed\n" + traceback.format_exc())
        good = False
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if good else 1)  # no thread of the link or the watch holds the exit up
