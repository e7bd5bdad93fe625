"""The worker group: torch's LocalElasticAgent, which asks the supervisor before each restart.

Torch still assigns ranks and restarts groups. All private names of torch that ddptop uses are in
this file.

torch 2.6 to 2.13 hands a dead attempt's store to the next one, which then reads stale addresses
(pytorch#135712). Here, each attempt gets its own store in a keeper process forked for it: on the
loopback interface or, for a job on several nodes, at an address that the others can reach. The
keeper outlives the agent, so that ranks whose agent was killed can still use their store.
"""

import errno
import json
import logging
import os
import select
import signal
import socket
import stat
import threading
from datetime import timedelta

import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from .run import attempt_variables, make_logs

RANK_SHELL = ("-c", 'exec "$@" >>"$DDPTOP_LOG" 2>&1', "ddptop-rank")
"""Appends a rank's standard output and error to its log, in the same process (exec)."""
LOOPBACK = "127.0.0.1"
ERROR_FILE_BYTES = 1 << 20
STORE_TIMEOUT = timedelta(seconds=60)
READY = b"ready"
"""What a store keeper reports once its store runs; otherwise, why it does not."""
USES_LIBUV = torch.__version__ >= (2, 8)
"""Whether torch's default store accepts a bound socket; otherwise, its older one is used."""
MONITOR_S = 0.1
"""Interval for checking the ranks, unless something happens sooner."""
MEETING_TIMEOUT = timedelta(seconds=600)
"""For several nodes, some of which may be late because of imports from a slow disk."""
RUN_ID_KEY = "ddptop/run_id"
ENDED_KEY = "ddptop/ended"
"""The number of nodes whose ranks have all exited with 0."""
RECORDS_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""How many collectives each rank records: the name since torch 2.8, the name before."""
DEFAULT_RECORDS = "2000"
"""The default of newer versions; 2.6 to 2.8 record nothing unless asked."""


def set_aside_broken_files(paths):
    """Rename incomplete or invalid error files, because one would end torch's agent."""
    for path in paths:
        try:
            message = json.loads(read_regular(path, ERROR_FILE_BYTES).decode())["message"]
            if not isinstance(message, str):
                int(message["extraInfo"]["timestamp"])
        except FileNotFoundError:
            pass  # usually, none was written
        except Exception:  # torch would read it, without a limit, and an error would end its agent
            os.replace(path, path + ".broken")


def read_regular(path, limit_bytes):
    """Read a regular file; never blocks, and follows no link.

    Raises:
        OSError: it cannot be read, or is something else.
        ValueError: it is longer than the limit.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ValueError("longer than %d bytes" % limit_bytes)
    return data


def expect_no_handlers(record):
    """Drop torch's warning about missing signal handlers, which is why it runs in a thread."""
    return "Failed to register signal handlers" not in record.getMessage()


logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(expect_no_handlers)


class RankFiles(LogsSpecs):
    """Gives each rank its log file, its error file, and its probe.

    Args:
        plan: the agent's plan.
    """

    def __init__(self, plan):
        super().__init__(log_dir=plan["logs_dir"], redirects=Std.NONE, tee=Std.NONE)
        self.plan = plan

    @property
    def root_log_dir(self):
        """The folder of the `attempt-<n>` folders."""
        return self.plan["logs_dir"]

    def reify(self, envs):
        """Complete each rank's variables before its start; `envs` is {local_rank: env}."""
        plan = self.plan
        error_files = {}
        number = next(iter(envs.values()))["TORCHELASTIC_RESTART_COUNT"]
        names = ["rank-%s.log" % env["RANK"] for env in envs.values()]
        folder = make_logs(plan["logs_dir"], number, names)
        for local_rank, env in envs.items():
            attempt, rank = env["TORCHELASTIC_RESTART_COUNT"], env["RANK"]
            error_files[local_rank] = os.path.join(folder, "rank-%s.error.json" % rank)
            env["TORCHELASTIC_ERROR_FILE"] = error_files[local_rank]
            env["DDPTOP_LOG"] = os.path.join(folder, "rank-%s.log" % rank)
            env["TORCHELASTIC_MAX_RESTARTS"] = str(max(plan["max_restarts"], int(attempt)))
            if not any(name in os.environ for name in RECORDS_SIZE):
                env[RECORDS_SIZE[torch.__version__ < (2, 8)]] = DEFAULT_RECORDS
            env.update(attempt_variables(plan, attempt, os.environ))
        nothing = dict.fromkeys(envs, "")
        # no tee: torch would follow each file in a thread, and wait for those before a restart
        return LogsDest(dict(nothing), dict(nothing), {}, {}, error_files)


def start_from_zygote(zygote, interpreter, probe, report):
    """Have torch's agent fork the ranks of an attempt together, if possible.

    Args:
        zygote: a Zygote.
        interpreter: `python -u`, with which it was started.
        probe: the probe's sitecustomize.py; None without a probe.
        report: called with the reason once the zygote stops forking.
    """
    start_all, start_process = SubprocessContext._start, SubprocessHandler._popen
    head = (*RANK_SHELL, *interpreter)
    forked: dict = {}  # by local rank

    def start(self):
        if not zygote.why_not:
            orders = [
                {
                    "argv": self.args[local_rank][len(head) :],
                    "env": {**os.environ, **env},
                    "log": env["DDPTOP_LOG"],
                }
                for local_rank, env in self.envs.items()
            ]
            forked.update(zip(self.envs, zygote.fork_ranks(orders, probe) or ()))
            if zygote.why_not is not None:
                report(zygote.why_not)
        start_all(self)

    def popen(self, args, env):
        rank = forked.pop(self.local_rank_id, None)
        return start_process(self, args, env) if rank is None else rank

    SubprocessContext._start, SubprocessHandler._popen = start, popen


class SupervisedAgent(LocalElasticAgent):
    """A LocalElasticAgent that reports to the supervisor and follows its answers.

    Args:
        spec: torch's WorkerSpec.
        logs_specs: a RankFiles.
        link: a SupervisorLink.
        exit_watch: an ExitWatch.
    """

    def __init__(self, spec, logs_specs, link, exit_watch):
        super().__init__(spec, logs_specs)
        self._remaining_restarts = 0  # torch's number of the attempt is max_restarts - remaining
        self._plan = logs_specs.plan
        self._link = link
        self._exit_watch = exit_watch
        self.restart_requested = False
        """Set by the supervisor: restart the group even though no rank failed."""
        self._started_attempt = None
        """The attempt whose ranks were started last; torch counts up before ending them."""
        self._counted_attempt = None
        """The attempt whose store already counts this node as one whose ranks have ended."""
        self.stopping = False
        """Set by the supervisor: it is ending the ranks, so do not restart them."""
        self.something_happened = threading.Event()
        """Set when a rank has exited or the supervisor has a request: check now."""

    @property
    def attempt(self):
        """The number of this attempt, counted from 0 over the whole job."""
        return self._worker_group.spec.max_restarts - self._remaining_restarts

    def allow_restart(self, is_allowed):
        """Set whether torch starts another attempt if this one fails."""
        attempt = self.attempt
        self._remaining_restarts = int(is_allowed)
        self._worker_group.spec.max_restarts = attempt + int(is_allowed)

    def handles(self):
        """{rank: subprocess.Popen} of the current attempt."""
        if self._pcontext is None:
            return {}
        by_local_rank = self._pcontext.subprocess_handlers
        return {
            worker.global_rank: by_local_rank[worker.local_rank].proc
            for worker in self._worker_group.workers
            if worker.local_rank in by_local_rank
        }

    def describe(self):
        """The last attempt started, for the link's hello: attempt, and workers with PIDs."""
        started = self._started_attempt
        workers = self._worker_group.workers
        handles = self.handles()
        return {
            "attempt": self.attempt if started is None else started,
            "workers": [
                {
                    "rank": worker.global_rank,
                    "local_rank": worker.local_rank,
                    "pid": handles[worker.global_rank].pid,
                    "returncode": handles[worker.global_rank].returncode,
                }
                for worker in workers
                if worker.global_rank in handles
            ],
        }

    def _start_workers(self, worker_group):
        pids = super()._start_workers(worker_group)
        self.restart_requested = False
        self._started_attempt = self.attempt
        # before their exits can be reported
        self._link.report(dict(self.describe(), type="group_started"))
        for rank, process in self.handles().items():
            self._exit_watch.add(process, {"attempt": self.attempt, "rank": rank})
        return pids

    def _monitor_workers(self, worker_group):
        self.something_happened.wait(MONITOR_S)
        self.something_happened.clear()
        codes = [process.poll() for process in self.handles().values()]
        if self.stopping:
            if any(code is None for code in codes):
                return RunResult(state=WorkerState.HEALTHY)
            self.allow_restart(False)
            return super()._monitor_workers(worker_group)
        if self.restart_requested:
            self.allow_restart(True)
            return RunResult(state=WorkerState.UNHEALTHY)
        failed = any(codes)  # a return code other than None and 0
        if not failed and (None in codes or self._has_store_for_others()):
            return RunResult(state=WorkerState.HEALTHY)
        if failed:
            # torch's poll ends the other ranks, so evidence has to be saved first
            ranks = [rank for rank, process in self.handles().items() if process.poll()]
            question = {"kind": "failing", "attempt": self.attempt, "ranks": ranks}
            self._link.ask(question)
            set_aside_broken_files(self._pcontext.error_files.values())
        result = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            answer = self._link.ask(dict(self.describe(), kind="torn_down"))
            self.allow_restart(answer["restart"])
        return result

    def _has_store_for_others(self):
        """Whether this node keeps the store and ranks of other nodes have not ended.

        Torch waits for them in a barrier and ignores requests to restart or end the group.
        """
        group = self._worker_group
        if group.group_world_size == 1:
            return False
        is_new = self._counted_attempt != self.attempt
        self._counted_attempt = self.attempt
        if not is_new and group.group_rank != 0:
            return False
        try:
            ended = group.store.add(ENDED_KEY, int(is_new))
        except Exception:  # the node that keeps the store is gone
            return False
        return group.group_rank == 0 and ended < group.group_world_size

    def _exit_barrier(self):
        """Do not wait, since `_monitor_workers` has waited."""

    def _stop_workers(self, worker_group, *args, **kwargs):
        for process in self.handles().values():
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGCONT)  # a paused rank cannot handle SIGTERM
                except OSError:
                    pass  # it has ended in the meantime
        super()._stop_workers(worker_group, *args, **kwargs)
        if not self.stopping:
            answer = self._link.ask({"kind": "group_stopped", "attempt": self.attempt})
            self._plan["memory_snapshot"] = answer.get("memory_snapshot", False)
            if answer.get("rendezvous") is not None:
                worker_group.spec.rdzv_handler.next_meeting = answer["rendezvous"]


def keep_store(listener, report):
    """Serve a TCPStore on a bound socket until killed; never returns.

    Args:
        listener: the socket.
        report: the pipe to which READY is written.
    """
    store = TCPStore(
        listener.getsockname()[0],
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
        use_libuv=USES_LIBUV,
    )
    os.write(report, READY)
    os.close(report)
    while store is not None:
        signal.pause()


def listen(address, port):
    """A socket that listens at the address, or on all if others reach this machine by another.

    The address may be translated (NAT), and Debian maps a machine's own name to 127.0.1.1.
    """
    family, kind, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    everywhere = ("::" if family == socket.AF_INET6 else "0.0.0.0", port)
    if str(place[0]).startswith("127.") and address not in (place[0], "localhost"):
        place = everywhere
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        listener.bind(everywhere)
    listener.listen(2048)
    return listener


def fork_store_keeper(address, port):
    """Start a store, on a free port if `port` is 0; returns (pid of its keeper, port).

    Raises:
        RuntimeError: torch cannot serve it.
    """
    listener = listen(address, port)
    port = listener.getsockname()[1]
    reader, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # other attempts' pidfds and the link to the supervisor belong to the agent only
            low, high = sorted((listener.fileno(), report))
            for kept, following in ((2, low), (low, high), (high, 4096)):
                os.closerange(kept + 1, following)
            keep_store(listener, report)
        except BaseException as error:
            os.write(report, repr(error).encode(errors="replace"))
        finally:
            os._exit(1)
    os.close(report)
    listener.close()
    with open(reader, "rb") as answers:
        is_due = select.select([answers], [], [], STORE_TIMEOUT.total_seconds())[0]
        answer = answers.read(4096) if is_due else b"it does not answer"
    if answer != READY:
        end_store_keeper(pid)
        raise RuntimeError("no store for the ranks: %s" % (answer.decode(errors="replace"),))
    return pid, port


def end_store_keeper(pid):
    """Kill a keeper, a child of this process."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError:
        pass  # already gone


class StaticRendezvous(RendezvousHandler):
    """A rendezvous of known agents: the supervisors have agreed on the nodes and the address.

    Each round has its own store, kept by the first node.

    Args:
        run_id: the job's ID, which ranks see as TORCHELASTIC_RUN_ID.
        meeting: of the first attempt: run_id, address, port, node_rank, nodes; None on one machine.
    """

    def __init__(self, run_id, meeting=None):
        self._run_id = run_id
        alone = {"run_id": run_id, "address": LOOPBACK, "port": 0, "node_rank": 0, "nodes": 1}
        self.next_meeting = meeting or alone
        """For the next attempt."""
        self.keeper_pid = None
        """Pid of the current attempt's store keeper, if this node keeps the store."""

    def get_backend(self):
        """The name in torch's events."""
        return "ddptop"

    @property
    def use_agent_store(self):
        """True: ranks connect to the agent's store instead of creating their own."""
        return True

    def next_rendezvous(self):
        """End the last attempt's store and join the other nodes, if any, at a new one."""
        self.shutdown()
        meeting = self.next_meeting
        address, port, node_rank = meeting["address"], meeting["port"], meeting["node_rank"]
        if node_rank == 0:
            self.keeper_pid, port = fork_store_keeper(address, port)
        store = TCPStore(address, port, is_master=False, timeout=MEETING_TIMEOUT)
        if node_rank == 0:
            store.set(RUN_ID_KEY, meeting["run_id"])
        elif store.get(RUN_ID_KEY) != meeting["run_id"].encode():
            raise RuntimeError("the store at %s:%s belongs to another attempt" % (address, port))
        return RendezvousInfo(
            store, node_rank, meeting["nodes"], RendezvousStoreInfo(address, port)
        )

    def is_closed(self):
        """Always False: the supervisor, not a flag in a store, ends the job."""
        return False

    def set_closed(self):
        """Do nothing, since there is nothing to close for others."""

    def num_nodes_waiting(self):
        """Always 0: the supervisors decide which nodes an attempt has."""
        return 0

    def get_run_id(self):
        """The job's ID, which ranks see as TORCHELASTIC_RUN_ID."""
        return self._run_id

    def shutdown(self):
        """End the store's keeper."""
        if self.keeper_pid is not None:
            end_store_keeper(self.keeper_pid)
            self.keeper_pid = None
        return True
