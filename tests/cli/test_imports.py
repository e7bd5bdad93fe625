"""What verbs load: a listing or a launch pays for neither Textual nor torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runner.builders import put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import RankSample

HEAVY = {"textual", "rich", "torch", "numpy", "psutil", "pynvml"}
RUN = """
import json, sys
from ddptop.__main__ import main
result = sys.argv.pop(1)
status = main()
with open(result, "w") as file:
    json.dump([status, sorted({name.partition(".")[0] for name in sys.modules})], file)
"""

VERBS = {
    "ls": ["ls"],
    "ls as JSON": ["ls", "--all", "--json"],
    "status": ["status", "train"],
    "status as JSON": ["status", "train", "--json"],
    "status in three lines": ["status", "train", "--watch"],
    "gpus": ["gpus"],
    "gpus as JSON": ["gpus", "--json"],
    "ps": ["ps"],
    "ps as JSON": ["ps", "--json"],
    "launch": ["launch", "--nproc", "1", "--dry-run", "train.py"],
    "wait": ["wait", "train"],
    "rm": ["rm", "train"],
    "help": ["--help"],
    "help of a verb": ["launch", "--help"],
    "a refusal": ["status", "none"],
}


@pytest.mark.torch
@pytest.mark.parametrize("arguments", VERBS.values(), ids=list(VERBS))
def test_a_verb_loads_only_what_it_needs(ddptop_home, tmp_path, monkeypatch, arguments):
    rank = RankSample(rank=0, local_rank=0, host=procs.host_name(), pid=1, step=3)
    put_job("train", {"state": "finished", "ended_at": utc_now(), "ranks": [rank]})
    (tmp_path / "train.py").touch()
    result = tmp_path / "result.json"
    answer = subprocess.run(
        [sys.executable, "-c", RUN, str(result), *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    status, modules = json.loads(Path(result).read_text())
    assert status == (3 if arguments[-1] == "none" else 0), answer.stderr
    assert "ddptop" in modules and "ddptop_runner" in modules
    assert HEAVY & set(modules) == set()
