"""The test environment itself: hosts that ssh reaches, and that can be disconnected or die."""

from __future__ import annotations

import subprocess
import sys

import pytest

NO_ANSWER = ["-o", "ConnectTimeout=2"]


@pytest.fixture
def ssh(hosts, head):
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ssh", "-o", "BatchMode=yes", *argv],
            env=head.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )

    return run


def test_login_sees_only_its_own_host(hosts, ssh):
    said = ssh("h2", "hostname; echo $DDPTOP_HOME; ls /sys/class/net; ls -d /proc/[0-9]* | wc -l")
    assert said.returncode == 0, said.stderr
    name, home, *devices, processes = said.stdout.split()
    assert (name, home) == ("h2", str(hosts.hosts["h2"].home))
    assert "eth0" in devices
    assert int(processes) < 10


def test_hosts_resolve_each_other_and_the_head(hosts):
    script = (
        "import socket, sys; [socket.create_connection((n, 22), 5).recv(4) for n in sys.argv[1:]]"
    )
    hosts.hosts["h1"].run(sys.executable, "-c", script, "h2", "h3")
    # the host is reached, but nothing listens there
    with pytest.raises(AssertionError, match="refused"):
        script = f"import socket; socket.create_connection(({hosts.head!r}, 9), 5)"
        hosts.hosts["h1"].run(sys.executable, "-c", script)


def test_disconnecting_a_host_from_all_or_only_from_the_head(hosts, ssh, wait_until):
    h1, h2 = hosts.hosts["h1"], hosts.hosts["h2"]
    ping = f"import socket; socket.create_connection(({h2.address!r}, 22), 2)"
    h2.cut_from_head()
    assert ssh(*NO_ANSWER, "h2", "true").returncode == 255
    h1.run(sys.executable, "-c", ping)
    h2.restore_to_head()
    h2.cut()
    assert ssh(*NO_ANSWER, "h2", "true").returncode == 255
    with pytest.raises(AssertionError, match=r"timed out|No route"):
        h1.run(sys.executable, "-c", ping)
    h2.restore()
    wait_until(lambda: ssh(*NO_ANSWER, "h2", "true").returncode == 0, 20)


def test_dead_host_loses_all_processes_and_boots_again(hosts, ssh, wait_until):
    h3 = hosts.hosts["h3"]
    assert ssh("h3", "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo").returncode == 0
    wait_until(lambda: any("sleep" in line for line in h3.described()), 10)
    h3.die()
    assert ssh(*NO_ANSWER, "h3", "true").returncode == 255
    h3.start(GREETING="hello you")
    assert h3.described() == []
    assert ssh("h3", "echo $GREETING").stdout.strip() == "hello you"
    h3.environment.pop("GREETING")


def test_link_traffic_is_counted(hosts, ssh):
    before = hosts.hosts["h1"].traffic_bytes()
    ssh("h1", "seq 20000")
    assert hosts.hosts["h1"].traffic_bytes() - before > 100_000


def test_a_changed_host_key_is_refused(hosts, ssh):
    known = hosts.keys / "known_hosts"
    before = known.read_text()
    h1, h2 = (hosts.hosts[name] for name in ("h1", "h2"))
    try:
        known.write_text(
            before.replace(h1.address + " ", "x ").replace(h2.address + " ", h1.address + " ")
        )
        assert "HOST IDENTIFICATION HAS CHANGED" in ssh("h1", "true").stderr
    finally:
        known.write_text(before)


def test_steps_run_together_over_two_hosts(hosts, trainer, wait_until):
    """Other tests rely on this: a rank that dies breaks the others, as with gloo."""
    ranks = {}
    for rank, name in enumerate(("h1", "h2")):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": hosts.hosts["h1"].address,
            "MASTER_PORT": "23000",
        }
        ranks[rank] = hosts.hosts[name].popen(
            [sys.executable, str(trainer.script), str(trainer.folder), "--save-every", "2"],
            env=variables,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    try:
        wait_until(lambda: len(trainer.steps(0, 1)) > 3, 30)
        assert trainer.steps(0, 1)[0]["host"] == "h2"
        assert (trainer.folder / "checkpoint.json").exists()
        trainer.do(1, "exit 7")
        _, said = ranks[0].communicate(timeout=20)
        assert f"Connection closed by peer [{hosts.hosts['h2'].address}]" in said
        assert ranks[1].wait(20) == 7
    finally:
        for process in ranks.values():
            process.kill()
            process.communicate()
