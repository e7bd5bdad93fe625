"""torchrun on the same hosts: one agent on each, as if started in as many terminals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.cluster.machines import Host, Network

PORT = 29500
CLEAN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it, group restarts across machines do not work at all."""


class Torchrun:
    """A job with one rank on each host; the first host keeps the rendezvous."""

    def __init__(
        self,
        network: Network,
        names: Sequence[str],
        command: Sequence[str],
        log: Path,
        nnodes: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.variables = dict(variables or {})
        self.hosts = [network.hosts[name] for name in names]
        self.command = list(command)
        self.nnodes = nnodes or str(len(names))
        self.agents: dict[str, subprocess.Popen[str]] = {}
        self._log = log
        self._id = os.urandom(4).hex()

    def start(self) -> None:
        """Start the agents on all hosts at once."""
        for host in self.hosts:
            self.start_on(host)

    def start_on(self, host: Host) -> None:
        """Start the agent on one host."""
        is_first = host is self.hosts[0]
        settings = f"is_host={int(is_first)},join_timeout=60,last_call_timeout=1"
        with self._log.open("a") as log:
            self.agents[host.name] = host.popen(
                [
                    *[sys.executable, "-m", "torch.distributed.run", "--nnodes", self.nnodes],
                    *["--nproc-per-node", "1", "--max-restarts", "10", "--rdzv-id", self._id],
                    *["--rdzv-backend", "c10d", "--rdzv-conf", settings],
                    *["--rdzv-endpoint", f"{self.hosts[0].address}:{PORT}"],
                    *["--local-addr", host.address, *self.command],
                ],
                env=CLEAN | {"GLOO_SOCKET_IFNAME": "eth0"} | self.variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ranks(self, host: Host) -> list[int]:
        """PIDs of its ranks."""
        return host.of("rank")

    def kill_agent(self, host: Host) -> None:
        """SIGKILL torchrun on one host only."""
        for pid in host.pids():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"torch.distributed.run" in words:
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill everything."""
        for host in self.hosts:
            host.end()
        for agent in self.agents.values():
            agent.kill()
            agent.wait()
