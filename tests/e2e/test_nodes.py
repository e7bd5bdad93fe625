"""One job on two nodes, which are processes on this machine: what each does for the head."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.e2e.nodes import Node, free_port, nodes_of

from ddptop_runner.model.protocol import Done, ReadFiles, Refused, Reply, StopAsked
from ddptop_runner.store.history_reader import HistoryReader

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from descent import Descent
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = Descent(model)
attempt = int(os.environ["DDPTOP_ATTEMPT"])
print("rank", dist.get_rank(), "of", dist.get_world_size(), "in attempt", attempt, flush=True)
step = 0
while attempt == 0 or step < 20:
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    step += 1
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""
PLAIN = """
import sys, time
print("here", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def error_of(reply: Reply) -> str:
    assert isinstance(reply, Refused)
    return reply.error


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        shutil.copy(Path(__file__).with_name("descent.py"), tmp_path)
        return path

    return write


@pytest.mark.torch
def test_two_nodes_train_and_restart_on_the_heads_orders(ddptop_home, script, wait_until):
    path = script(TRAIN)
    nodes = first, second = Node(path, 0, 2), Node(path, 1, 2)
    with nodes_of(*nodes):
        port = free_port()
        for node in nodes:
            assert node.start(port) == Done()
        for node in nodes:
            wait_until(lambda node=node: "training" in node.kinds(), timeout_s=120)
        assert "already running" in error_of(second.start(port))

        second.cut()
        os.kill(second.state.supervisor.pid, signal.SIGKILL)
        second.connect()
        wait_until(lambda: "supervisor_restarted" in second.kinds())

        first.kill_rank(0)
        for node in nodes:
            wait_until(lambda node=node: "restart_held" in node.kinds())
        failed = [node.of_kind("failure")[0] for node in nodes]
        assert failed[0]["cause"]["signal"] == "SIGKILL"
        assert [[end["exit"]["rank"] for end in one["ends"]] for one in failed] == [[0], [1]]
        died_s = [one["ends"][0]["exit"]["at_boottime_s"] for one in failed]
        assert died_s[0] < died_s[1], "the head could not tell the victim"

        port = free_port()
        for node in nodes:
            assert node.restart(1, port) == Done()
            assert node.restart(1, port) == Done(), "asked again, it has begun"
            assert "cannot begin 3" in error_of(node.restart(3, port))
        for node in nodes:
            wait_until(lambda node=node: "ended" in node.kinds(), timeout_s=120)
            assert node.of_kind("ended")[0]["state"] == "finished"
            wait_until(lambda node=node: node.state.state == "finished")
            assert node.kinds().count("attempt_started") == 2
            rows = HistoryReader(node.folder.history_db).events(silent=True)
            assert [one.seq for one in node.events] == [one.seq for one in rows]
            assert [one.seq for one in rows] == list(range(1, len(rows) + 1))
            rank = 0 if node is first else 1
            log = node.folder.logs_dir / "attempt-1" / f"rank-{rank}.log"
            assert f"rank {rank} of 2 in attempt 1" in log.read_text()


@pytest.mark.torch
def test_node_survives_without_a_link_restarts_and_is_adopted(ddptop_home, script, wait_until):
    path = script(PLAIN)
    trains = Node(path, 0, orphan_timeout_s=2.0)
    fails = Node(path, 1, orphan_timeout_s=6.0)
    with nodes_of(trains, fails):
        port = free_port()
        assert trains.start(port, "600") == Done()
        assert fails.start(free_port(), "0") == Done()
        wait_until(lambda: "rank_started" in trains.kinds())
        wait_until(lambda: "restart_held" in fails.kinds())
        trains.cut()
        trains.connect()
        trains.cut()
        history = trains.folder.history_db

        def ends():
            rows = HistoryReader(history).events(silent=True)
            return [row.data for row in rows if row.data["kind"] == "ended"]

        assert wait_until(ends)[0]["state"] == "stopped"
        wait_until(lambda: "ended" in fails.kinds())
        ended = fails.of_kind("ended")[0]
        assert (ended["state"], ended["requeue"]) == ("failed", True)
        assert "--orphan-timeout" in ended["reason"]
        trains.connect()
        wait_until(lambda: "ended" in trains.kinds(), what="the rest to be forwarded")
        assert trains.start(port, "600", attempt=1) == Done(), "a head may start it again"
        wait_until(lambda: "attempt_started" in trains.kinds(1))

        os.kill(trains.state.guardian.pid, signal.SIGKILL)
        wait_until(lambda: "guardian_restarted" in trains.kinds(), what="a new guardian")
        os.kill(trains.state.agent.pid, signal.SIGKILL)
        wait_until(lambda: "agent_lost" in trains.kinds())
        assert trains.restart(2, free_port()) == Done()
        wait_until(lambda: "attempt_started" in trains.kinds(2), what="a new agent")
        assert trains.ask(StopAsked(grace_s=0.0)) == Done()
        wait_until(lambda: trains.kinds().count("ended") == 2)


def test_link_reports_that_no_job_exists(ddptop_home, script, wait_until):
    node = Node(script(PLAIN))
    with nodes_of(node):
        wait_until(lambda: node.absent)
        assert "cannot be reached" in error_of(node.ask(StopAsked(grace_s=1.0)))
        read = ReadFiles(where="../../etc", names=["passwd"])
        assert "neither logs nor evidence" in error_of(node.ask(read))
        node.cut()
