"""A fresh store per attempt, on the loopback interface, in a keeper that survives its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

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
        answer = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from torch.distributed import TCPStore;"
                "store = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=False);"
                "store.set('a', 'b'); print(store.get('a').decode())",
                port,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.stdout.strip() == "b", answer.stderr
    finally:
        os.kill(keeper.pid, signal.SIGKILL)
        agent.stdout.close()
        assert agent.stdin is not None
        agent.stdin.close()
        agent.wait()


PREPARED = f"""
import os, sys, time
sys.path.insert(0, {str(AGENT.parent)!r})
from agent import elastic as module

def lives(pid):
    return os.path.exists("/proc/%d" % pid)

handler = module.StaticRendezvous("job@1")
first, old = handler.next_rendezvous(), handler.keeper_pid
handler.prepare()
prepared = handler._prepared[0]
handler.prepare()
assert prepared == handler._prepared[0] and handler.keeper_pid == old and lives(old)
first.store.set("step", "1")  # its ranks are still ending
handler.renew()
assert not lives(old) and handler.keeper_pid is None and prepared == handler._prepared[0]
second = handler.next_rendezvous()
assert handler.keeper_pid == prepared and handler._prepared is None
assert not second.store.check(["step"])
handler.prepare()
pids = [handler.keeper_pid, handler._prepared[0]]
handler.shutdown()
assert not any(map(lives, pids))

first = handler.next_rendezvous()
handler.prepare()
dead = handler._prepared[0]
os.kill(dead, 9)
os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
assert handler.next_rendezvous().store.check(["step"]) is False
assert handler.keeper_pid != dead
handler.shutdown()

fork = module.fork_store_keeper
def cannot_fork():
    raise BlockingIOError("the limit on processes")
module.fork_store_keeper = cannot_fork
handler.prepare()
module.fork_store_keeper = fork
assert handler.next_rendezvous().store.check(["step"]) is False
handler.shutdown()

keep, began_s = module.keep_store, time.monotonic()
def cannot_serve(*_):
    raise NotImplementedError("a listen fd")
module.keep_store = cannot_serve
try:
    handler.next_rendezvous()
except RuntimeError as error:
    assert "a listen fd" in str(error), error
else:
    print("a store that cannot be served")
assert time.monotonic() - began_s < module.STORE_TIMEOUT.total_seconds() / 2
module.keep_store = keep
try:
    print("left behind", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    pass

meeting = dict(run_id="job.1", address="127.0.0.1", port=1, node_rank=0, nodes=2)
several = module.StaticRendezvous("job@1.0", meeting)
several.keeper_pid = kept = fork()[0]
several.prepare()
several.renew()
assert several._prepared is None and lives(kept), "ranks of other nodes may still use it"
several.shutdown()
assert not lives(kept)
print("all is well")
"""


def test_the_next_store_is_ready_before_the_last_one_ends():
    done = subprocess.run(
        [sys.executable, "-c", PREPARED], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "all is well\n", done.stderr


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
