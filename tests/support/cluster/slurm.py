"""A real Slurm on the hosts of a network: slurmctld here, one slurmd per host, and fake GPUs.

All its files are in its own folder, and its processes are ended by their PID files. The partitions
are `main`, and `high`, whose jobs preempt and requeue those of `main`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support import system_tools
from tests.support.cluster import machines
from tests.support.cluster.machines import Host, Network
from tests.support.programs import captured

GPUS_PER_NODE = 4
START_TIMEOUT_S = 30.0
DAEMONS = ("slurmctld", "slurmd", "munged")
CLIENTS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")

CONFIG = """\
ClusterName=ddptop
SlurmctldHost={here}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket
CredType=cred/munge
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.txt
MpiDefault=none
SwitchType=switch/none
PlugStackConfig=/dev/null
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdTimeout=5
SlurmctldTimeout=5
InactiveLimit=0
KillWait=5
MinJobAge=600
GresTypes=gpu
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 \
  PreemptMode=REQUEUE
PartitionName=high Nodes={names} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str | None:
    """Why Slurm cannot run here; None if it can."""
    lacking = [name for name in (*DAEMONS, *CLIENTS) if system_tools.find(name) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else machines.missing()


class Slurm:
    """The cluster; its nodes are the hosts of the network, under the same names."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.folder = network.folder / "slurm"
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        """What the shell of a user needs."""

    def make(self) -> None:
        """Start it; returns once all nodes are idle."""
        for name in ("state", "log", "run", "spool", "dev"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "slurm.conf").write_text(self._config())
        device = self.folder / "dev" / "gpu"
        (self.folder / "gres.conf").write_text(
            f"NodeName={self._names()} Name=gpu File={device}[0-{GPUS_PER_NODE - 1}]\n"
        )
        for number in range(GPUS_PER_NODE):  # each is another /dev/null
            os.mknod(f"{device}{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        # without it, slurmd refuses to start if /sys/fs/cgroup is not mounted
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._start_munge(key)
        self._start("slurmctld", "-c", "-f", self.environment["SLURM_CONF"])
        for host in self.network.hosts.values():
            self.start_node(host)
        self.wait_idle()

    def _names(self) -> str:
        return ",".join(self.network.hosts)

    def _config(self) -> str:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        nodes = [
            f"NodeName={host.name} NodeAddr={host.address} CPUs=4 RealMemory=4000 "
            f"Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
            for host in self.network.hosts.values()
        ]
        return CONFIG.format(
            here=os.uname().nodename,
            address=self.network.head,
            port=port,
            folder=self.folder,
            nodes="\n".join(nodes),
            names=self._names(),
        )

    def _start_munge(self, key: Path) -> None:
        run, log = self.folder / "run", self.folder / "log"
        self._start(
            *["munged", "--force", f"--key-file={key}", f"--socket={run}/munge.socket"],
            *[f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log"],
            f"--seed-file={run}/munge.seed",
        )

    def _start(self, name: str, *arguments: str) -> None:
        done = captured(
            system_tools.find(name) or name, *arguments, stdin=subprocess.DEVNULL, timeout=60
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr.strip()}")

    def start_node(self, host: Host) -> None:
        """Start a host's slurmd, as its boot does."""
        (self.folder / "spool" / host.name).mkdir(exist_ok=True)
        daemon = system_tools.find("slurmd") or "slurmd"
        host.run(daemon, "-N", host.name, "-f", self.environment["SLURM_CONF"])

    def run(self, *argv: str, timeout_s: float = 60.0, **environment: str) -> str:
        """The output of a Slurm command on this machine; fails if the command does."""
        done = captured(
            *argv,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=os.environ | self.environment | environment,
        )
        assert done.returncode == 0, f"{shlex.join(argv)}: {done.stderr.strip()}"
        return done.stdout.strip()

    def job_state(self, job: str) -> str:
        """`RUNNING`, `PENDING`, ...; empty once Slurm has forgotten the job."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def requeue(self, job: str) -> None:
        """`scontrol requeue`."""
        self.run("scontrol", "requeue", job)

    def cancel(self) -> None:
        """Cancel all jobs."""
        self.run("scancel", "--user", "root", "--full")

    def wait_idle(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until all nodes are idle; nodes that were down return by themselves."""
        wanted, deadline = f"idle {len(self.network.hosts)}", time.monotonic() + timeout_s
        while (shown := self._states()) != wanted:
            if time.monotonic() > deadline:
                log = (self.folder / "log/slurmctld.log").read_text()[-2000:]
                raise RuntimeError(f"nodes are {shown!r} and not {wanted!r}:\n{log}")
            time.sleep(0.1)

    def _states(self) -> str:
        try:
            return self.run("sinfo", "-h", "-p", "main", "-o", "%T %D")
        except AssertionError as error:
            return str(error)

    def restore(self) -> None:
        """Cancel all jobs and start missing daemons, after the network was restored."""
        self.cancel()
        for host in self.network.hosts.values():
            if not host.daemons():
                self.start_node(host)
        self.wait_idle(60.0)

    def remove(self) -> None:
        """End everything."""
        for file in sorted((self.folder / "run").glob("*.pid"), reverse=True):
            if file.name.startswith("slurmd-"):
                continue  # a PID on its host, with which it ends
            try:
                os.kill(int(file.read_text()), signal.SIGTERM)
            except (OSError, ValueError):
                pass
        for host in self.network.hosts.values():
            for pid in host.daemons():
                _kill(pid)
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def running_slurm(network: Network) -> Iterator[Slurm]:
    """A temporary Slurm cluster."""
    slurm = Slurm(network)
    try:
        slurm.make()
        yield slurm
        slurm.cancel()
    finally:
        slurm.remove()
