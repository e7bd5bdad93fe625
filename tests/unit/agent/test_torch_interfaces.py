"""The parts of torch elastic that the agent relies on, in the installed version of torch.

`elastic.py` is the only file that uses them. A torch that renames one of them
turns this red before a job does.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

AGENT = Path(__file__).parents[3] / "runner" / "ddptop_runner" / "agent"


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_overridden_agent_methods_keep_their_names_and_parameters():
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    assert parameters(LocalElasticAgent.__init__)[:3] == ["self", "spec", "logs_specs"]
    for name in ("_start_workers", "_monitor_workers"):
        assert parameters(getattr(LocalElasticAgent, name)) == ["self", "worker_group"]
    assert parameters(LocalElasticAgent._exit_barrier) == ["self"]
    assert parameters(LocalElasticAgent._stop_workers)[:2] == ["self", "worker_group"]
    source = inspect.getsource(LocalElasticAgent)
    assert "self._pcontext" in source
    assert "spec.max_restarts - self._remaining_restarts" in source


def test_agent_loop_restarts_while_restarts_remain_and_decrements_them():
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    loop = inspect.getsource(SimpleElasticAgent._invoke_run)
    assert "if self._remaining_restarts > 0:" in loop
    assert "self._remaining_restarts -= 1" in loop
    assert "self._restart_workers(" in loop


def test_ranks_are_popen_objects_by_local_rank():
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import (
        SubprocessHandler,
    )

    assert "self.subprocess_handlers" in inspect.getsource(SubprocessContext)
    assert "error_files" in inspect.getsource(SubprocessContext)
    assert parameters(SubprocessContext._start) == ["self"]
    start = inspect.getsource(SubprocessContext._start)
    assert "args=self.args[local_rank]" in start and "env=self.envs[local_rank]" in start
    handler = inspect.getsource(SubprocessHandler)
    assert re.search(r"self\.proc: (subprocess\.)?Popen ", handler)
    assert "start_new_session" in handler
    assert handler.index("self.local_rank_id = ") < handler.index("self._popen(")


def test_log_destinations_begin_with_the_five_maps_that_the_agent_fills():
    import dataclasses

    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    names = [field.name for field in dataclasses.fields(LogsDest)]
    assert names[:5] == ["stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files"]
    assert parameters(LogsSpecs.reify)[:2] == ["self", "envs"]


def test_torch_gets_no_rank_log_to_tail(tmp_path):
    """A thread per rank and stream would poll it, and a restart would wait for each of them."""
    from torch.distributed.elastic.multiprocessing.tail_log import TailLog

    from ddptop_runner.agent.elastic import RankFiles

    plan = {"logs_dir": str(tmp_path), "save_flag": "", "probe_dir": None, "max_restarts": 3}
    envs = {rank: {"TORCHELASTIC_RESTART_COUNT": "0", "RANK": str(rank)} for rank in (0, 1)}
    files = RankFiles(plan).reify(envs)
    for followed in (files.tee_stdouts, files.tee_stderrs):
        assert TailLog("rank", followed, sys.stdout)._threadpool is None
    assert sorted(files.stdouts) == sorted(files.error_files) == [0, 1]


def test_rendezvous_implements_every_method_that_torch_calls():
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo

    from ddptop_runner.agent.elastic import StaticRendezvous

    assert not StaticRendezvous.__abstractmethods__
    assert RendezvousHandler.__abstractmethods__ <= set(vars(StaticRendezvous))
    assert parameters(RendezvousInfo.__init__)[1:5] == [
        "store",
        "rank",
        "world_size",
        "bootstrap_store_info",
    ]
    assert "master_listen_fd" in (TCPStore.__init__.__doc__ or "")


@pytest.mark.parametrize("file", sorted(AGENT.glob("*.py")), ids=lambda file: file.name)
def test_agent_is_valid_python_3_8_and_needs_only_torch(file: Path):
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "level", 0) == 0
        for alias in node.names
    }
    import sys

    assert imported - set(sys.stdlib_module_names) <= {"torch", "ddptop_agent"}
