"""Hosts of a small network on this machine, as seen by `ssh` and Slurm.

Each host is a network, hostname, process, and mount namespace with an sshd as its process 1: what
runs there sees neither processes nor interfaces of the others, and dies with it. They share the
file system, but each has its own HOME, DDPTOP_HOME, /etc/hosts and /dev/shm. This machine takes
part at `Network.head`; the folder `Network.tools`, first in PATH, has an `ssh` that knows them.

Names carry the pid of who made them, so sessions coexist and the next one removes what one that
was killed has left.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support import system_tools
from tests.support.programs import captured

from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs

NAMES = ("h1", "h2", "h3")
START_TIMEOUT_S = 20.0
_OURS = re.compile(r"dt(\d+)-")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

SSHD_CONFIG = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {keys}/login.pub
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PrintMotd no
PrintLastLog no
MaxStartups 100
SetEnv {environment}
"""
SSH_CONFIG = """\
Host {name}
  HostName {address}
  User root
  IdentityFile {keys}/login
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  UpdateHostKeys no
"""


def missing() -> str | None:
    """Why such hosts cannot be created here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces require root"
    lacking = [
        name
        for name in ("ip", "sshd", "ssh", "ssh-keygen", "unshare", "nsenter")
        if system_tools.find(name) is None
    ]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    name = f"dt{os.getpid()}-try"
    tried = _quiet("ip", "netns", "add", name)
    if tried.returncode == 0:
        tried = _quiet("ip", "netns", "exec", name, "unshare", "--uts", "--pid", "--fork", "true")
        _quiet("ip", "netns", "del", name)
    if tried.returncode:
        return f"no network namespaces: {' '.join(tried.stderr.split())}"
    return None


def _quiet(*argv: str) -> subprocess.CompletedProcess[str]:
    return captured(
        system_tools.find(argv[0]) or argv[0], *argv[1:], stdin=subprocess.DEVNULL, timeout=60
    )


def _do(*argv: str) -> str:
    done = _quiet(*argv)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """ddptop's processes in one state folder, on this machine or on a host."""

    home: Path
    """DDPTOP_HOME."""

    def pids(self) -> list[int]:
        """All processes there that may be ddptop's, by their PIDs on this machine."""
        here = os.getpid()
        return [
            pid
            for pid in procs.all_pids()
            if pid != here and procs.environ_value(pid, "DDPTOP_HOME") == str(self.home)
        ]

    def of(self, role: str, job: str | None = None) -> list[int]:
        """PIDs of `guardian`, `supervisor`, `sampler`, `agent`, `store`, `node`, or `rank`.

        Args:
            role: what the process is.
            job: only that job's; a `node` process belongs to none.
        """
        found = [pid for pid in self.pids() if _role(pid) == role]
        if job is None:
            return found
        start = f"{job}@"
        return [
            pid
            for pid in found
            if (procs.environ_value(pid, "DDPTOP_JOB_ID") or "").startswith(start)
        ]

    def kill(self, role: str, job: str | None = None, number: int = signal.SIGKILL) -> list[int]:
        """Send a signal to all processes with this role; fails if there are none."""
        pids = self.of(role, job)
        assert pids, f"no {role} of {job} in {self.home}: {self.described()}"
        for pid in pids:
            os.kill(pid, number)
        return pids

    def described(self) -> list[str]:
        """A description of what is running there, but for sshd, whose link a test may have cut."""
        lines = [(pid, " ".join(_argv(pid))[:160]) for pid in self.pids()]
        return [
            f"{pid} {_role(pid)} {line}" for pid, line in lines if not line.startswith("sshd: ")
        ]

    def end(self) -> list[str]:
        """Kill everything that is still running there; returns a description of it."""
        left = self.described()
        while pids := self.pids():  # a guardian may start a supervisor between two scans
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        return left


def _argv(pid: int) -> list[str]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in data.split(b"\0")[:-1]]


def _parent(pid: int) -> int:
    fields = procs.stat_fields(pid)
    return int(fields[1]) if fields else 0


def _is_agent(argv: list[str]) -> bool:
    return any(word.endswith("ddptop_runner/agent/__main__.py") for word in argv)


def _role(pid: int) -> str | None:
    argv = _argv(pid)
    if words := own_words(argv):
        return words[0].rpartition(".")[2]
    if _is_agent(argv):
        return "store" if _is_agent(_argv(_parent(pid))) else "agent"
    return "rank" if procs.environ_value(pid, "LOCAL_RANK") is not None else None


class Host(Processes):
    """One host; see the module's docstring."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.network = network
        self.name = name
        self.address = f"{network.subnet}.{10 + number}"
        self.namespace = f"dt{os.getpid()}-{name}"
        self.folder = network.folder / name
        self.home = self.folder / "state"
        self.environment = {
            "HOME": str(self.folder / "home"),
            "DDPTOP_HOME": str(self.home),
            "DDPTOP_TMUX_SOCKET": f"dt{os.getpid()}-{name}",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "OMP_NUM_THREADS": "1",
        }
        self._port = f"p{number}"
        self._outside: subprocess.Popen[bytes] | None = None
        self.init: int | None = None
        """The pid of its process 1 on this machine; None while it is down."""

    def make(self) -> None:
        """Create its network and keys."""
        for folder in (self.folder / "home", self.home):
            folder.mkdir(parents=True, mode=0o700)
        _do("ip", "netns", "add", self.namespace)
        switch, inside = self.network.switch, self.namespace
        pair = ["netns", inside, "type", "veth", "peer", "name", self._port, "netns", switch]
        _do("ip", "link", "add", "eth0", *pair)
        _do("ip", "-n", inside, "link", "set", "lo", "up")
        _do("ip", "-n", inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _do("ip", "-n", inside, "link", "set", "eth0", "up")
        _do("ip", "-n", switch, "link", "set", self._port, "master", "br0")
        _do("ip", "-n", switch, "link", "set", self._port, "up")
        settings = Path("/etc/netns") / self.namespace
        settings.mkdir(parents=True)
        (settings / "hosts").write_text(self.network.hosts_file())
        (settings / "resolv.conf").write_text("")  # reverse lookups fail at once
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key"))

    def start(self, **environment: str) -> None:
        """Boot it; returns once its sshd answers.

        Args:
            **environment: more variables that logins get, as from `/etc/environment`.
        """
        assert self.init is None, f"{self.name} is up"
        self.environment |= environment
        config = self.folder / "sshd_config"
        quoted = " ".join(f'"{name}={value}"' for name, value in self.environment.items())
        config.write_text(
            SSHD_CONFIG.format(
                address=self.address,
                folder=self.folder,
                keys=self.network.keys,
                environment=quoted,
            )
        )
        # sshd as process 1 reaps orphaned processes
        boot = (
            f"hostname {self.name}; mount -t tmpfs tmpfs /dev/shm; "
            f"exec {system_tools.find('sshd')} -D -f {config} -E {self.folder}/sshd.log"
        )
        self._outside = subprocess.Popen(
            [
                *[system_tools.find("ip") or "ip", "netns", "exec", self.namespace],
                *["unshare", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"],
                *["sh", "-c", boot],
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": system_tools.search_path()},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        children = Path(f"/proc/{self._outside.pid}/task/{self._outside.pid}/children")
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (self.init and _listens(self.init, 22)):
            if self._outside.poll() is not None or time.monotonic() > deadline:
                log = self.folder / "sshd.log"
                raise RuntimeError(
                    f"{self.name}: no sshd: {log.read_text() if log.exists() else ''}"
                )
            time.sleep(0.01)
            found = children.read_text().split()
            self.init = int(found[0]) if found else None

    def die(self) -> None:
        """Kill all of its processes at once, like a power failure."""
        if self._outside is not None:
            if self.init is not None:
                os.kill(self.init, signal.SIGKILL)
            self._outside.wait(timeout=30)
        self._outside = self.init = None

    def pids(self) -> list[int]:
        """All processes running there except its daemons."""
        daemons = self.daemons()
        return [pid for pid in self._all_pids() if pid != self.init and pid not in daemons]

    def daemons(self) -> list[int]:
        """PIDs of Slurm's own processes."""
        return [
            pid
            for pid in self._all_pids()
            if Path("".join(_argv(pid)[:1])).name.startswith(("slurmd", "slurmstepd"))
        ]

    def _all_pids(self) -> list[int]:
        if self.init is None:
            return []
        mine = _pid_namespace(self.init)
        return [pid for pid in procs.all_pids() if _pid_namespace(pid) == mine]

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command there as its user, with the environment of a login."""
        assert self.init is not None, f"{self.name} is down"
        enter = ["nsenter", "-t", str(self.init), "-n", "-u", "-i", "-p", "-m"]
        cwd = options.pop("cwd", self.folder / "home")
        more: Mapping[str, str] = options.pop("env", {})
        options.setdefault("text", True)
        options.setdefault("stdin", subprocess.DEVNULL)
        options["env"] = {
            "PATH": system_tools.search_path(),
            "USER": "root",
            **self.environment,
            **more,
        }
        return subprocess.Popen([*enter, f"--wd={cwd}", *argv], **options)

    def run(self, *argv: str, timeout_s: float = 60.0, **options: Any) -> str:
        """The output of a command there; fails if the command does."""
        process = self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        try:
            printed, _ = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        assert process.returncode == 0, f"{self.name}: {shlex.join(argv)}: {printed}"
        return str(printed)

    def cut(self) -> None:
        """Disconnect it from the network."""
        _do("ip", "-n", self.network.switch, "link", "set", self._port, "down")

    def restore(self) -> None:
        """Reconnect it; harmless if it was not disconnected."""
        _do("ip", "-n", self.network.switch, "link", "set", self._port, "up")

    def cut_from_head(self) -> None:
        """Drop what it sends to this machine: ssh breaks, but the other hosts still reach it."""
        _do("ip", "-n", self.namespace, "route", "add", "blackhole", f"{self.network.head}/32")

    def restore_to_head(self) -> None:
        """Undo `cut_from_head`; harmless if it was not called."""
        _quiet("ip", "-n", self.namespace, "route", "del", "blackhole", f"{self.network.head}/32")

    def traffic_bytes(self) -> int:
        """Bytes sent and received over its link since it was created."""
        shown = _do("ip", "-n", self.network.switch, "-s", "-j", "link", "show", self._port)
        figures = json.loads(shown)[0]["stats64"]
        return int(figures["rx"]["bytes"]) + int(figures["tx"]["bytes"])

    def remove(self) -> None:
        """Remove it for good."""
        self.die()
        _quiet("ip", "netns", "del", self.namespace)
        shutil.rmtree(Path("/etc/netns") / self.namespace, ignore_errors=True)


def _pid_namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _listens(pid: int, port: int) -> bool:
    """Whether a TCP port is open in the network of that process or namespace."""
    try:
        table = Path(f"/proc/{pid}/net/tcp").read_text()
    except OSError:
        return False
    rows = (line.split() for line in table.splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


class Network:
    """The hosts, and this machine."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp")).resolve()
        self.subnet = _free_subnet()
        self.head = f"{self.subnet}.1"
        self.switch = f"dt{os.getpid()}-switch"
        self.keys = self.folder / "keys"
        self.tools = self.folder / "tools"
        self.hosts = {name: Host(self, name, n) for n, name in enumerate(NAMES, 1)}
        self._device = f"dt{os.getpid()}"

    def hosts_file(self) -> str:
        """/etc/hosts of each host: all names, including this machine's."""
        lines = [f"{host.address} {host.name}" for host in self.hosts.values()]
        return "\n".join(["127.0.0.1 localhost", *lines, f"{self.head} {os.uname().nodename}", ""])

    def make(self) -> None:
        """Start all of it; returns once the hosts answer over ssh."""
        remove_leftovers()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.keys.mkdir(mode=0o700)
        _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.keys / "login"))
        _do("ip", "netns", "add", self.switch)
        _do("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", self.switch, "link", "set", "br0", "up")
        pair = ["type", "veth", "peer", "name", "p0", "netns", self.switch]
        _do("ip", "link", "add", self._device, *pair)
        _do("ip", "addr", "add", f"{self.head}/24", "dev", self._device)
        _do("ip", "link", "set", self._device, "up")
        _do("ip", "-n", self.switch, "link", "set", "p0", "master", "br0")
        _do("ip", "-n", self.switch, "link", "set", "p0", "up")
        for host in self.hosts.values():
            host.make()
            host.start()
        self._write_ssh()

    def _write_ssh(self) -> None:
        known = [
            f"{host.address} {(host.folder / 'host_key.pub').read_text()}"
            for host in self.hosts.values()
        ]
        (self.keys / "known_hosts").write_text("".join(known))
        config = self.keys / "ssh_config"
        blocks = [
            SSH_CONFIG.format(name=host.name, address=host.address, keys=self.keys)
            for host in self.hosts.values()
        ]
        config.write_text("".join(blocks))
        self.tools.mkdir()
        for name in ("ssh", "scp", "sftp"):
            script = self.tools / name
            script.write_text(f'#!/bin/sh\nexec {system_tools.find(name)} -F {config} "$@"\n')
            script.chmod(0o755)

    def restore(self) -> None:
        """Reconnect everything, and boot hosts that are down."""
        _do("ip", "-n", self.switch, "link", "set", "p0", "up")
        for host in self.hosts.values():
            host.restore()
            host.restore_to_head()
            if host.init is None:
                host.start()

    def end_processes(self) -> list[str]:
        """Kill everything that is still running on the hosts; returns a description of it."""
        return [f"{host.name}: {line}" for host in self.hosts.values() for line in host.end()]

    def remove(self) -> None:
        """Remove everything."""
        for host in self.hosts.values():
            host.remove()
        _quiet("ip", "link", "del", self._device)
        _quiet("ip", "netns", "del", self.switch)
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_subnet() -> str:
    routes = _do("ip", "route")
    while f"{(subnet := f'10.{random.randint(100, 199)}.{random.randint(1, 250)}')}." in routes:
        pass
    return subnet


def remove_leftovers() -> None:
    """Remove the namespaces of sessions that were killed."""
    names = {line.split()[0] for line in _do("ip", "netns", "list").splitlines() if line.strip()}
    for name in names:
        found = _OURS.match(name)
        if found is None or procs.start_ticks(int(found[1])) is not None:
            continue
        _quiet("ip", "netns", "del", name)
        _quiet("ip", "link", "del", f"dt{found[1]}")
        shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


class Head(Processes):
    """This machine as the one that launches jobs, with its own state folder."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.home = folder / "state"
        self.home.mkdir(parents=True, mode=0o700)
        self.socket = f"dt{os.getpid()}-{os.urandom(4).hex()}"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DDPTOP_", "SLURM_", "TMUX", "CUDA_VISIBLE"))
        }
        self.environment = kept | {
            "PATH": f"{network.tools}:{os.environ['PATH']}",
            "DDPTOP_HOME": str(self.home),
            "DDPTOP_TMUX_SOCKET": self.socket,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "OMP_NUM_THREADS": "1",
        }

    def cli(
        self, *args: str, timeout_s: float = 120.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `ddptop ARGS` without a terminal."""
        return captured(
            *[sys.executable, "-m", "ddptop"],
            *args,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=self.environment | environment,
            cwd=self.folder,
        )

    def reaches(self, host: str) -> bool:
        """Whether a host answers ssh."""
        command = ["ssh", "-o", "ConnectTimeout=2", host, "true"]
        return subprocess.run(command, env=self.environment, check=False).returncode == 0

    def end(self) -> list[str]:
        """Kill everything that is still running here, and the tmux server."""
        left = super().end()
        _quiet("tmux", "-L", self.socket, "kill-server")
        return left


def running_network() -> Iterator[Network]:
    """A temporary network; fails the test if a process outlives it."""
    network = Network()
    try:
        network.make()
        yield network
        left = network.end_processes()
    finally:
        network.remove()
    if left:
        pytest.fail("processes outlived the tests:\n  " + "\n  ".join(left), pytrace=False)


def main() -> None:
    """Keep hosts running for experiments, and print how to reach them."""
    for network in running_network():
        head = Head(network, network.folder / "head")
        print(f"export PATH={network.tools}:$PATH DDPTOP_HOME={head.home}")
        print(f"# hosts {' '.join(NAMES)} are up, e.g. `ssh h1`; Ctrl-C ends them", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            head.end()


if __name__ == "__main__":
    main()
