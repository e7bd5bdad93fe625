"""Scripts that start ranks themselves, and those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tables import table

from ddptop_runner.launch.program import MOST_BYTES, starts_own_ranks

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


def test_of_all_scripts_here_only_those_that_start_ranks_are_found():
    scripts = [*ROOT.glob("tests/**/scripts/*.py"), *ROOT.glob("tools/recording/*.py")]
    scripts += [*ROOT.glob("tests/support/trainers/*.py"), *ROOT.glob("ddptop/demo/*.py")]
    found = {path.name for path in scripts if starts_own_ranks(path) is not None}
    assert len(scripts) > 30 and found == {"spawn.py"}
