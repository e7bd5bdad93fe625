"""A fresh store per attempt, on the loopback, in a keeper that outlives its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.torch

AGENT = Path(__file__).parents[2] / "runner" / "ddptop_runner" / "agent"

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


def test_each_attempt_has_a_store_of_its_own_that_outlives_a_killed_agent():
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
