"""What the words of a command reveal."""

from __future__ import annotations

import random
import shlex

import pytest
from tests.support.tables import table

from ddptop_runner.launch.program import command_name, launcher_name
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
