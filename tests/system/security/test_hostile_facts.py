"""What a process says of itself, in any words and variables: bounded, and never an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.support.accounts import Account
from tests.support.foreign_toys import running
from tests.support.foreign_trees import find, rank_environ, torch_process
from tests.support.programs import captured

from ddptop_runner.foreign.process_table import ARGV_WORDS, ProcessTable
from ddptop_runner.host import procs

HUGE = "9" * 5000
ESCAPES = "\x1b]0;owned\x07\u202e\x9b31m"

VARIABLES: dict[str, dict[str, str]] = {
    "more digits than Python reads": {"RANK": HUGE, "WORLD_SIZE": HUGE, "LOCAL_RANK": HUGE},
    "a thousand million ranks": rank_environ(0) | {"WORLD_SIZE": str(10**9)},
    "as many as are read": rank_environ(10**6) | {"WORLD_SIZE": str(10**6)},
    "an address": rank_environ(0) | {"MASTER_ADDR": ESCAPES * 1000},
    "a job of ours": rank_environ(0) | {"DDPTOP_JOB_ID": f"{ESCAPES}@1"},
    "devices": rank_environ(0) | {"CUDA_VISIBLE_DEVICES": HUGE},
}


@pytest.mark.parametrize("environ", VARIABLES.values(), ids=list(VARIABLES))
def test_variables_of_any_kind_are_read(environ: dict[str, str]) -> None:
    jobs, _ = find([torch_process(10, 1, "python train.py", environ=environ)])
    for job in jobs:
        said = [job.name, job.command, job.rendezvous or "", *job.notes]
        assert all(text.isprintable() and len(text) < 1000 for text in said)
        assert len(job.ranks) == 1


@pytest.mark.parametrize("words", [f"--rank {HUGE}", f"--nnodes={HUGE} --nproc {HUGE}", ESCAPES])
def test_words_of_any_kind_are_read(words: str) -> None:
    (job,), _ = find([torch_process(10, 1, f"python {words} train.py {words}")])
    assert job.command.isprintable() and job.name.isprintable()


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_root_lists_a_process_that_says_anything(attacker: Account, words: tuple[str, ...]) -> None:
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    said = {"MASTER_ADDR": ESCAPES, "TORCHELASTIC_RESTART_COUNT": str(10**9)}
    process = attacker.popen(
        [attacker.python, "-c", code, ESCAPES, f"--rank={HUGE}"],
        env=attacker.environment(**(rank_environ(0) | said)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        listed = captured(sys.executable, "-m", "ddptop", "ps", *words)
    finally:
        process.communicate()
    assert listed.returncode == 0, listed.stderr
    assert str(process.pid) in listed.stdout
    assert not set("\x1b\x07\u202e\x9b") & set(listed.stdout + listed.stderr)


def test_of_endless_words_only_the_first_are_kept(wait_until: Any) -> None:
    code = "print('up', flush=True); import time; time.sleep(1000)"
    many = ["x"] * 20_000
    quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running(sys.executable, "-c", code, *many, "y" * 100_000, **quiet) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(procs.argv(process.pid)) == len(many) + 4
        (facts,) = [one for one in ProcessTable().scan() if one.pid == process.pid]
        assert len(facts.argv) <= ARGV_WORDS
        assert sum(map(len, facts.argv)) < 1 << 16
        assert facts.uid == os.geteuid()


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "-d", "--", "true"],
        ["launch", "-d", "--cwd", ".", "--", "true"],
        ["launch", "--dry-run", "--", "true"],
        ["ls", "--json"],
        ["status", "--json"],
        ["logs", "train"],
    ],
)
def test_a_folder_that_is_no_utf8_is_refused_or_of_no_matter(ddptop_home, tmp_path, words) -> None:
    odd = os.fsencode(tmp_path) + b"/w\xff"
    os.mkdir(odd)  # noqa: PTH102 - bytes
    answer = captured(
        sys.executable, "-m", "ddptop", *words, cwd=odd, env=os.environb | {b"ODD\xfe": b"\xfd"}
    )
    assert "Traceback" not in answer.stderr
    if words[0] == "launch":
        assert answer.returncode == 2
        assert "w\\xff' is not valid UTF-8" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1
        assert not (ddptop_home / "runs").exists()
    elif words[0] == "ls":
        assert json.loads(answer.stdout)["jobs"] == []
    else:
        assert answer.returncode in (2, 3)
