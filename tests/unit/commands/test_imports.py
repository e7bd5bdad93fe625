"""What commands import: listing and launching need neither Textual nor torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support.builders import put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import RankSample

HEAVY = {"textual", "rich", "torch", "numpy", "psutil", "pynvml", "libtmux"}
NOT_LIGHT = {
    *("asyncio", "click", "dataclasses", "importlib.metadata", "inspect", "json", "random"),
    *("shutil", "signal", "socket", "sqlite3", "statistics", "subprocess", "typing_extensions"),
}
"""Modules that `ls`, `status`, and `gpus` do not import: each costs 1 to 10 ms of CPU, out of 60.
"""
UNSEEN = {
    "ls": {"ddptop.job.figures.ranks"},
    "status": {"ddptop.job.figures.jobs"},
    "gpus": {"ddptop_runner.job.registry", "ddptop_runner.judge"},  # without a driver
}
"""Modules of ddptop that make nothing that these verbs print."""
RUN = """
import json, sys
from ddptop.__main__ import main
result, verbs, heavy = sys.argv[1], json.loads(sys.argv[2]), set(json.loads(sys.argv[3]))
found = {}
for name, arguments in verbs.items():
    sys.argv = ["ddptop", *arguments]
    loaded = set(sys.modules)
    status = main()
    found[name] = [status, sorted(heavy & (set(sys.modules) - loaded))]
found["modules"] = sorted(sys.modules)
with open(result, "w") as file:
    json.dump(found, file)
"""
LOADED = """
import sys
import msgspec  # needs some of them in Python 3.10
known = set(sys.modules)
from ddptop.__main__ import main
main()
sys.stderr.write(",".join(set(sys.modules) - known))
"""

VERBS = {
    "ls": ["ls"],
    "ls as JSON": ["ls", "--all", "--json"],
    "status": ["status", "train"],
    "status as JSON": ["status", "train", "--json"],
    "status in place": ["status", "train", "--watch"],
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
def test_command_imports_only_what_it_needs(ddptop_home, tmp_path):
    """All commands in one new process; each import is attributed to the first command that needs
    it."""
    rank = RankSample(rank=0, local_rank=0, host=procs.host_name(), pid=1, step=3)
    put_job("train", {"state": "finished", "ended_at": utc_now(), "ranks": [rank]})
    (tmp_path / "train.py").touch()
    result = tmp_path / "result.json"
    words = [json.dumps(VERBS), json.dumps(sorted(HEAVY))]
    answer = subprocess.run(
        [sys.executable, "-c", RUN, str(result), *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    found = json.loads(result.read_text())
    assert {"ddptop.cli", "ddptop_runner.jobs"} <= set(found.pop("modules"))
    for name, (status, loaded) in found.items():
        assert status == (3 if name == "a refusal" else 0), (name, answer.stderr)
        # --watch draws lines, and so measures text in cells
        assert set(loaded) <= ({"rich"} if name == "status in place" else set()), name


@pytest.mark.parametrize("arguments", [["ls"], ["status", "train"], ["gpus"]], ids=" ".join)
def test_what_people_watch_loads_little(ddptop_home, arguments):
    rank = RankSample(rank=0, local_rank=0, host=procs.host_name(), pid=1, step=3)
    put_job("train", {"state": "finished", "ended_at": utc_now(), "ranks": [rank]})
    answer = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    loaded = set(answer.stderr.splitlines()[-1].split(","))
    assert "ddptop_runner.model.snapshot" in loaded
    assert loaded & (NOT_LIGHT | UNSEEN[arguments[0]]) == set()


@pytest.mark.torch
@pytest.mark.parametrize("name", [[], ["--name", "new"]], ids=["derived", "named"])
def test_a_job_waits_for_little_before_it_starts(ddptop_home, tmp_path, name):
    (tmp_path / "train.py").touch()
    answer = subprocess.run(
        [sys.executable, "-c", LOADED, "launch", *name, "--nproc", "1", "--dry-run", "train.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    loaded = set(answer.stderr.splitlines()[-1].split(","))
    assert "ddptop_runner.jobs.launch" in loaded
    assert loaded & {"asyncio", "hashlib", "logging", "sqlite3"} == set()


def test_an_early_exit_waits_for_what_is_being_imported() -> None:
    """Python crashes if it exits while a thread imports a C extension."""
    script = (
        "import atexit, sys; from ddptop_runner.host import tmux; tmux.import_early();"
        "server = 'ddptop_runner.host.tmux_server';"
        "atexit.register(lambda: print(hasattr(sys.modules.get(server), 'shell_words')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n")
