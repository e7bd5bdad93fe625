"""One job on two nodes, which are processes on this machine: what each does for the head."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from tests.support.real_jobs import DESCENT
from tests.support.real_nodes import Node, free_port, nodes_of, rendezvous

from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.protocol import Done, ReadFiles, Refused, Reply, StopAsked
from ddptop_runner.store.history_reader import HistoryReader

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
        shutil.copy(DESCENT, tmp_path)
        return path

    return write


@pytest.mark.torch
def test_node_holds_without_a_head_and_ends_after_the_orphan_timeout(
    ddptop_home, script, wait_until
):
    node = Node(script(PLAIN), orphan_timeout_s=6.0)
    with nodes_of(node):
        assert node.start(free_port(), "600") == Done()
        assert "already running" in error_of(node.start(free_port()))
        wait_until(lambda: node.has_reported(pt.GroupStarted))
        group = node.begins(0)
        wait_until(lambda: node.state is not None and node.state.ranks[0].pid)
        node.cut()
        os.kill(node.state.supervisor.pid, signal.SIGKILL)
        os.kill(group.workers[0].pid, signal.SIGKILL)
        node.facts.clear()
        node.connect()
        wait_until(lambda: node.has_reported(pt.AgentAsked, kind="failing"), timeout_s=30)
        wait_until(lambda: node.has_reported(pt.LinkMade, after_seq=1))
        died = node.has_reported(pt.ProcessExited, rank=0, status=-signal.SIGKILL)
        assert died and "supervisor_restarted" in node.kinds()
        node.cut()  # its agent waits for an answer
        node.facts.clear()
        node.connect()
        wait_until(lambda: node.has_reported(pt.AgentAsked, kind="failing"))
        assert node.state.agent is not None
        node.cut()
        history = node.folder.history_db

        def ended():
            rows = HistoryReader(history).events(silent=True)
            kinds = ("noticed", "rank_exited", "ended")
            return [row.data for row in rows if row.data["kind"] in kinds]

        said, died, end = wait_until(lambda: len(ended()) == 3 and ended(), timeout_s=30)
        assert "--orphan-timeout" in said["text"] and end["state"] == "stopped"
        assert (died["status"], died["by_us"]) == (-signal.SIGKILL, False)
        node.connect()
        wait_until(lambda: "ended" in node.kinds(), what="the rest to be forwarded")


@pytest.mark.torch
def test_node_carries_out_orders_and_is_adopted(ddptop_home, script, wait_until):
    node = Node(script(PLAIN))
    with nodes_of(node):
        assert node.start(free_port(), "600") == Done()
        wait_until(lambda: node.has_reported(pt.GroupStarted))
        node.begins(0)
        wait_until(lambda: node.state is not None and node.state.agent is not None)
        os.kill(node.state.guardian.pid, signal.SIGKILL)
        wait_until(lambda: "guardian_restarted" in node.kinds(), what="a new guardian")
        os.kill(node.state.agent.pid, signal.SIGKILL)
        wait_until(lambda: node.has_reported(pt.AgentExited))
        requested = ev.RestartPrepared(attempt=0, wanted=ev.WantedAgent(attempt=1))
        restart = ev.RestartRequested(attempt=0, used=0, limit=3)
        node.tell(restart, requested, pt.EndLeftovers(with_agent=True, await_memory=True))
        wait_until(lambda: node.has_reported(pt.LeftoversEnded))
        meeting = rendezvous(1, free_port(), 0, 1)
        node.tell(pt.StartAgent(attempt=1, rendezvous=meeting))
        wait_until(lambda: node.has_reported(pt.GroupStarted, attempt=1), timeout_s=60)
        group = node.begins(1)
        os.kill(group.workers[0].pid, signal.SIGKILL)
        wait_until(lambda: node.has_reported(pt.AgentAsked, kind="failing", attempt=1))
        killed = next(
            one for one in node.facts if isinstance(one, pt.ProcessExited) and one.attempt
        )
        node.tell(
            ev.RankExited(attempt=1, rank=0, pid=killed.pid, status=killed.status, at_s=killed.at_s)
        )
        judged = node.ask(pt.JudgeRanks(attempt=1))
        assert isinstance(judged, pt.RanksJudged) and judged.cause.signal == "SIGKILL"
        assert [end["exit"]["rank"] for end in judged.ends] == [0]
        assert "attempt 1" in error_of(node.ask(pt.JudgeRanks(attempt=0)))
        assert node.ask(StopAsked(grace_s=0.0)) == Done()
        wait_until(lambda: "ended" in node.kinds())


def test_link_reports_that_no_job_exists(ddptop_home, script, wait_until):
    node = Node(script(PLAIN))
    with nodes_of(node):
        wait_until(lambda: node.has_reported(pt.LinkMade, is_there=False))
        assert "cannot be reached" in error_of(node.ask(StopAsked(grace_s=1.0)))
        read = ReadFiles(where="../../etc", names=["passwd"])
        assert "neither logs nor evidence" in error_of(node.ask(read))
        node.cut()
