"""A rendezvous for one machine: a new store on the loopback interface for every attempt.

torch 2.6 to 2.13 hands the dead attempt's store to the next one, which then reads stale addresses
(pytorch#135712). Here each attempt gets a store of its own, in a keeper process forked for it: the
keeper outlives the agent, so that ranks whose agent was killed can still use their store.
"""

import os
import signal
import socket
import sys
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

LOOPBACK = "127.0.0.1"
STORE_TIMEOUT = timedelta(seconds=60)


def keep_store(listener):
    """Serve a TCPStore on a bound socket until killed. Never returns."""
    store = TCPStore(
        LOOPBACK,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    while store is not None:
        signal.pause()


def fork_store_keeper():
    """Start a store on a free loopback port; (pid of its keeper, port)."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK, 0))
    listener.listen(2048)
    port = listener.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # other attempts' pidfds and the link to the supervisor are the agent's alone
            os.closerange(3, listener.fileno())
            os.closerange(listener.fileno() + 1, 4096)
            keep_store(listener)
        except BaseException as error:
            sys.stderr.write("ddptop: the store keeper failed: %r\n" % (error,))
            sys.stderr.flush()
        os._exit(1)
    listener.close()
    return pid, port


class OneBoxRendezvous(RendezvousHandler):
    """Rendezvous of a single agent: nobody to wait for, a new store per round."""

    def __init__(self, run_id):
        self._run_id = run_id
        self.keeper_pid = None
        """Pid of the current attempt's store keeper."""

    def get_backend(self):
        """The name that torch's events carry."""
        return "ddptop"

    @property
    def use_agent_store(self):
        """Ranks connect to the agent's store instead of making one of their own."""
        return True

    def next_rendezvous(self):
        """End the last attempt's store and open a fresh one."""
        self.shutdown()
        self.keeper_pid, port = fork_store_keeper()
        store = TCPStore(LOOPBACK, port, is_master=False, timeout=STORE_TIMEOUT)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, port))

    def is_closed(self):
        """Never: the supervisor ends the job, not a flag in a store."""
        return False

    def set_closed(self):
        """Nothing to close for others."""

    def num_nodes_waiting(self):
        """No other node can join one box."""
        return 0

    def get_run_id(self):
        """The job's id, which ranks see as TORCHELASTIC_RUN_ID."""
        return self._run_id

    def shutdown(self):
        """End the store's keeper, which is this process's child."""
        if self.keeper_pid is not None:
            try:
                os.kill(self.keeper_pid, signal.SIGKILL)
                os.waitpid(self.keeper_pid, 0)
            except OSError:
                pass  # it is gone already
            self.keeper_pid = None
        return True
