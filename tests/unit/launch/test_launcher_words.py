"""What the words of a command and its script reveal."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest
from tests.support.tables import table

from ddptop_runner.launch.program import MOST_BYTES, command_name, launcher_name, starts_own_ranks
from ddptop_runner.model.spec import check_name

COMMANDS = table(__file__, "commands")


@pytest.mark.parametrize("command", COMMANDS)
def test_launcher_and_script_are_read_from_a_command(command):
    argv = shlex.split(command)
    assert [launcher_name(argv) or "", command_name(argv)] == COMMANDS[command]


@pytest.mark.parametrize("seed", range(4))
def test_any_words_get_a_name_that_a_job_can_have(seed):
    words = shlex.split("env A=1 bash -c -lc torchrun python -m x.py -- - '&&' ';' ./x")
    words += shlex.split("sudo uv run mpirun / //")
    words += ["", "a 'b", "cd x; python 'a", "日本", "\x00", "...", "cd /x && python a.py"]
    choose = random.Random(seed)
    for _ in range(1000):
        argv = [choose.choice(words) for _ in range(choose.randint(0, 6))]
        assert check_name(command_name(argv))
        launcher_name(argv)


MP = "import torch.multiprocessing as mp\n"
SOURCES = {
    **table(__file__, "sources"),
    f"{MP}mp.spawn(f)\n" + "(" * 500 + ")" * 500: "",
    f"{MP}mp.spawn(f)\n#" + "x" * MOST_BYTES: "",
}


@pytest.mark.parametrize("text", SOURCES, ids=range(len(SOURCES)))
def test_scripts_that_start_ranks_are_recognized(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert (starts_own_ranks(tmp_path / "train.py") or "") == SOURCES[text]


def test_a_script_that_cannot_be_read_is_unknown(tmp_path):
    assert starts_own_ranks(tmp_path) is None


ROOT = Path(__file__).parents[3]


def test_of_the_scripts_here_only_one_starts_ranks_itself():
    scripts = [*ROOT.glob("tests/**/scripts/*.py"), *ROOT.glob("tools/recording/*.py")]
    scripts += [*ROOT.glob("tests/support/trainers/*.py"), *ROOT.glob("ddptop/demo/*.py")]
    assert len(scripts) > 30
    found = [path.name for path in scripts if starts_own_ranks(path) is not None]
    assert found == ["spawned.py"]
