"""Assembles the agent: torch elastic in a thread, next to the link to the supervisor.

torch is only imported once the link runs. `command` also uses what is here.
"""

import gc
import os
import sys
import threading
import time
import traceback

from .link import ExitWatch, SupervisorLink

NEXT = ".next"
"""The folder for the next attempt's logs, which `node.keeper` prepares for a full disk."""


def clock():
    """CLOCK_BOOTTIME, the clock shared by all of ddptop's processes."""
    clock_id = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock_id is None else time.clock_gettime(clock_id)


def exit_message(process, about):
    """The message for the exit of a process; `about` contains its attempt and rank."""
    return dict(
        about,
        type="rank_exited",
        pid=process.pid,
        returncode=process.returncode,
        at_boottime_s=clock(),
    )


def attempt_variables(plan, attempt, inherited):
    """Variables that ddptop adds to all processes of an attempt; `inherited` are the agent's."""
    env = {"DDPTOP_ATTEMPT": str(attempt), "DDPTOP_CHECKPOINT_FILE": plan["save_flag"]}
    if plan["probe_dir"]:
        env["DDPTOP_PROBE_SOCK"] = plan["probe_socket"]
        env["DDPTOP_STACKS_DIR"] = plan["stacks_dir"]
        if not plan["replica_check"]:
            env["DDPTOP_REPLICA_CHECK"] = "off"
        if plan["memory_snapshot"]:
            env["DDPTOP_MEMORY_SNAPSHOT"] = "on"
        env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [plan["probe_dir"], inherited.get("PYTHONPATH")])
        )
    return env


def make_logs(logs_dir, attempt, names):
    """Create the attempt's folder with a log for each name, readable only by this user.

    Otherwise the umask of the user's shell, with which ranks run, would decide.

    Args:
        logs_dir: the parent of all attempts' folders.
        attempt: its number.
        names: the names of its logs.

    Returns:
        The folder.
    """
    folder = os.path.join(logs_dir, "attempt-%s" % attempt)
    try:
        if not os.path.exists(folder):
            os.rename(os.path.join(logs_dir, NEXT), folder)
            for name in set(os.listdir(folder)) - set(names):
                os.unlink(os.path.join(folder, name))
    except OSError:
        pass  # none has been prepared
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    for name in names:
        try:
            log = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o600)
            os.fchmod(log, 0o600)
            os.close(log)
        except OSError:
            pass  # whoever writes to it reports the error
    return folder


class AgentBase:
    """One run of an agent: its link to the supervisor, and the exits that it has seen.

    Args:
        plan: the agent's plan.
    """

    def __init__(self, plan):
        self._plan = plan
        self._exits = []
        self._exits_lock = threading.Lock()
        self._stopping = False
        self._exit_watch = ExitWatch(self._on_exit)
        self._link = SupervisorLink(plan["control_socket"], self._hello, self._on_command)
        self._link.start()

    def _describe(self):
        """The attempt, and its workers."""
        raise NotImplementedError

    def _on_command(self, message):
        raise NotImplementedError

    def _hello(self):
        state = self._describe()
        with self._exits_lock:
            exits = [exit_ for exit_ in self._exits if exit_["attempt"] == state["attempt"]]
        return dict(state, type="agent_hello", pid=os.getpid(), exits=exits)

    def _on_exit(self, process, about):
        message = exit_message(process, about)
        with self._exits_lock:
            self._exits = [e for e in self._exits if e["attempt"] == about["attempt"]] + [message]
        self._link.report(message)


class Agent(AgentBase):
    """One run of the agent: from the plan to the end of the worker group."""

    def __init__(self, plan, zygote, why_not):
        self._zygote = zygote
        self._why_not = why_not
        self._elastic = None
        super().__init__(plan)

    def _describe(self):
        if self._elastic is None:
            return {"attempt": self._plan["attempt"], "workers": []}
        return self._elastic.describe()

    def _on_exit(self, process, about):
        super()._on_exit(process, about)
        if self._elastic is not None:
            self._elastic.something_happened.set()

    def _on_command(self, message):
        kind = message["order"]
        elastic = self._elastic
        if kind == "stopping":
            self._stopping = True
            if elastic is None:
                os._exit(0)  # nothing has been started yet
            elastic.stopping = True
            elastic.something_happened.set()
        elif kind == "restart_group" and elastic is not None:
            elastic.restart_requested = True
            elastic.something_happened.set()

    def _report_plain_start(self, why):
        self._link.report({"type": "plain_start", "why": why})

    def run(self):
        """Run the worker group until torch's agent returns; report what happens."""
        plan = self._plan
        from torch.distributed.elastic.agent.server.api import WorkerSpec

        from .elastic import (
            RANK_SHELL,
            RankFiles,
            StaticRendezvous,
            SupervisedAgent,
            start_from_zygote,
        )

        gc.freeze()  # otherwise, collections would copy what is shared with the zygote
        gc.enable()
        # torch substitutes ${local_rank} in arguments; "$$" stands for a literal "$"
        command = [argument.replace("$", "$$") for argument in [*RANK_SHELL, *plan["command"]]]
        spec = WorkerSpec(
            role="default",
            local_world_size=plan["nproc"],
            rdzv_handler=StaticRendezvous(plan["job_id"], plan.get("rendezvous")),
            entrypoint="/bin/sh",
            args=tuple(command),
            max_restarts=plan["attempt"],  # the supervisor allows each restart
            monitor_interval=0.001,  # the agent itself waits; torch refuses 0
        )
        if self._zygote is not None:
            start_from_zygote(
                self._zygote, plan["command"][:2], plan["probe_file"], self._report_plain_start
            )
        elif self._why_not is not None:
            self._report_plain_start(self._why_not)
        elastic = SupervisedAgent(spec, RankFiles(plan), self._link, self._exit_watch)
        self._elastic = elastic
        if self._stopping:
            return
        try:
            elastic.run()
        finally:
            spec.rdzv_handler.shutdown()


def run_plan(plan, zygote=None, why_not=None):
    """Run torch elastic in its own thread, where torch does not install signal handlers.

    Args:
        plan: the agent's plan.
        zygote: forks ranks; None starts them normally.
        why_not: why there is no zygote even though one was requested.
    """
    agent = Agent(plan, zygote, why_not)
    thread = threading.Thread(target=run_and_exit, args=[agent], name="ddptop-elastic")
    thread.start()
    thread.join()


def run_and_exit(agent):
    """Run an agent and exit; the status shows only whether it could run."""
    try:
        failed = agent.run() is False
    except BaseException:
        sys.stderr.write("ddptop: the agent failed\n" + traceback.format_exc())
        failed = True
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(failed))  # no thread of the link or the watch can delay the exit
