"""A fresh store per attempt, on the loopback interface, in a keeper that survives its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.programs import captured

pytestmark = pytest.mark.torch

AGENT = Path(__file__).parents[3] / "runner" / "ddptop_runner" / "agent"

ATTEMPTS = f"""
import os, sys
sys.path.insert(0, {str(AGENT.parent)!r})
from agent import elastic as module
from torch.distributed import TCPStore
handler = module.StaticRendezvous("job@1")
first = handler.next_rendezvous()
first.store.set("left", "over")
first_keeper = handler.keeper_pid
second = handler.next_rendezvous()
port = second.bootstrap_store_info.master_port
assert not second.store.check(["left"]), "the dead attempt's key is still there"
print(first_keeper, handler.keeper_pid, second.bootstrap_store_info.master_addr, port, flush=True)
sys.stdin.read()
"""


def test_each_attempt_has_its_own_store_that_survives_a_killed_agent():
    agent = subprocess.Popen(
        [sys.executable, "-c", ATTEMPTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    first, second, address, port = agent.stdout.readline().split()
    keeper = psutil.Process(int(second))
    try:
        assert not psutil.pid_exists(int(first))
        listening = {c.laddr for c in keeper.net_connections() if c.status == psutil.CONN_LISTEN}
        assert {(laddr.ip, laddr.port) for laddr in listening} == {("127.0.0.1", int(port))}
        assert address == "127.0.0.1"
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        answer = captured(
            sys.executable,
            "-c",
            "import sys; from torch.distributed import TCPStore;"
            "store = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=False);"
            "store.set('a', 'b'); print(store.get('a').decode())",
            port,
        )
        assert answer.stdout.strip() == "b", answer.stderr
    finally:
        os.kill(keeper.pid, signal.SIGKILL)
        agent.stdout.close()
        assert agent.stdin is not None
        agent.stdin.close()
        agent.wait()


MEETING = f"""
import os, socket, sys
sys.path.insert(0, {str(AGENT.parent)!r})
from agent import elastic as module

def meeting(place, run_id="job.1"):
    return dict(run_id=run_id, address="127.0.0.1", port=port, node_rank=place, nodes=2)

with module.listen("127.0.0.1", 0) as probe:
    port = probe.getsockname()[1]
first = module.StaticRendezvous("job@1.0", meeting(0))
other = module.StaticRendezvous("job@1.1", meeting(1))
late = module.StaticRendezvous("job@1.1", meeting(1, "job.0"))
try:
    met = [one.next_rendezvous() for one in (first, other)]
    assert [(one.rank, one.world_size) for one in met] == [(0, 2), (1, 2)]
    assert {{one.bootstrap_store_info.master_port for one in met}} == {{port}}
    assert other.keeper_pid is None
    met[0].store.set("from", "first")
    assert met[1].store.get("from") == b"first"
    try:
        late.next_rendezvous()
    except RuntimeError as error:
        print(error)
finally:
    first.shutdown()

asked = socket.getaddrinfo
def as_debian(name, port, **more):
    return asked("127.0.1.1" if name == "own-name" else name, port, **more)
socket.getaddrinfo = as_debian
for address in ("127.0.0.1", "localhost", "own-name", "192.0.2.77"):
    with module.listen(address, 0) as listener:
        print(address, listener.getsockname()[0])
"""


def test_nodes_use_the_store_of_the_first_node():
    done = subprocess.run(
        [sys.executable, "-c", MEETING], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    refused, *listened = done.stdout.splitlines()
    assert "belongs to another attempt" in refused
    assert listened[0] == "127.0.0.1 127.0.0.1"
    assert listened[1].endswith((" 127.0.0.1", " ::1"))
    assert listened[2:] == ["own-name 0.0.0.0", "192.0.2.77 0.0.0.0"], "others cannot reach it"
