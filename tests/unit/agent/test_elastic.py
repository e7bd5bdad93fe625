"""What the agent reports about its group, running torch's own agent."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

pytestmark = pytest.mark.torch


def test_between_attempts_it_reports_the_one_whose_ranks_it_has(monkeypatch):
    from torch.distributed.elastic.agent.server.api import Worker, WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from ddptop_runner.agent.elastic import SupervisedAgent

    spec = WorkerSpec(
        role="default",
        local_world_size=1,
        rdzv_handler=Mock(keeper_pid=None),
        entrypoint="/bin/true",
        max_restarts=0,
        monitor_interval=0.1,
    )
    agent = SupervisedAgent(spec, Mock(), Mock(), Mock())
    described = agent.describe()
    assert (described["attempt"], described["workers"]) == (0, [])

    def start(self: SupervisedAgent, group: object) -> dict[int, int]:
        proc = SimpleNamespace(pid=100 + self.attempt, returncode=None)
        self._pcontext = SimpleNamespace(subprocess_handlers={0: SimpleNamespace(proc=proc)})
        return {0: proc.pid}

    monkeypatch.setattr(LocalElasticAgent, "_start_workers", start)
    agent._worker_group.workers = [Worker(local_rank=0, global_rank=0)]
    agent._start_workers(agent._worker_group)
    assert (agent.describe()["attempt"], agent.describe()["workers"][0]["pid"]) == (0, 100)
    agent._remaining_restarts -= 1  # torch does this, and then ends the ranks
    assert (agent.describe()["attempt"], agent.describe()["workers"][0]["pid"]) == (0, 100)
    agent._start_workers(agent._worker_group)
    assert (agent.describe()["attempt"], agent.describe()["workers"][0]["pid"]) == (1, 101)


def test_only_the_store_node_waits_for_other_nodes_ranks(monkeypatch):
    from torch.distributed import HashStore
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from ddptop_runner.agent.elastic import SupervisedAgent

    done = RunResult(state=WorkerState.SUCCEEDED)
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: done)
    store, agents = HashStore(), []
    for number in range(2):
        spec = WorkerSpec(
            role="default",
            local_world_size=1,
            rdzv_handler=Mock(),
            entrypoint="/bin/true",
            max_restarts=0,
        )
        agent = SupervisedAgent(spec, Mock(), Mock(), Mock())
        agent._pcontext = SimpleNamespace(subprocess_handlers={})
        group = agent._worker_group
        group.store, group.group_rank, group.group_world_size = store, number, 2
        agents.append(agent)
    keeper, other = agents

    def state(agent: SupervisedAgent) -> str:
        return agent._monitor_workers(agent._worker_group).state.name

    assert [state(keeper), state(keeper)] == ["HEALTHY", "HEALTHY"]
    keeper.restart_requested = True
    assert state(keeper) == "UNHEALTHY"
    keeper.restart_requested = False
    assert [state(other), state(keeper)] == ["SUCCEEDED", "SUCCEEDED"]


def test_it_wakes_when_a_rank_exits_or_the_supervisor_sends_a_message():
    from ddptop_runner.agent.run import Agent

    agent = Agent.__new__(Agent)
    agent._link, agent._exits, agent._exits_lock = Mock(), [], threading.Lock()
    agent._elastic = SimpleNamespace(something_happened=threading.Event())
    happened = agent._elastic.something_happened
    exited = SimpleNamespace(pid=100, returncode=-9), {"attempt": 0, "rank": 1}
    orders = ({"type": "tell_agent", "order": order} for order in ("restart_group", "stopping"))
    for wake in (lambda: agent._on_exit(*exited), *(partial(agent._on_command, o) for o in orders)):
        happened.clear()
        wake()
        assert happened.is_set()
