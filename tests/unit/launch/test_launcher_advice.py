"""Scripts that start ranks themselves, and those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop_runner.launch.program import MOST_BYTES, starts_own_ranks

MP = "import torch.multiprocessing as mp\n"
SOURCES = {
    # source text: the call that is found
    f"{MP}mp.spawn(f)": "mp.spawn (line 2)",
    "import torch\ntorch.multiprocessing.spawn(f)": "torch.multiprocessing.spawn (line 2)",
    "from torch.multiprocessing import spawn as go\ngo(f)": "go (line 2)",
    f"{MP}def main():\n    if go:\n        mp.start_processes(f)": "mp.start_processes (line 4)",
    "from accelerate import notebook_launcher\nnotebook_launcher(f)": "notebook_launcher (line 2)",
    f"import os\n{MP}os.environ['RANK'] = '0'\nmp.spawn(f)": "mp.spawn (line 4)",
    "import subprocess\nsubprocess.run(['/v/bin/torchrun', 't.py'])": "subprocess.run (line 2)",
    "import os\nos.system(f'python -m torch.distributed.run {1} t.py')": "os.system (line 2)",
    "import os\nos.system('\\n  torchrun t.py\\n')": "os.system (line 2)",
    "from torch.distributed.run import run\nrun(args)": "run (line 2)",
    "import subprocess\nsubprocess.run(['ls'])": None,
    "import subprocess\nsubprocess.run(['tail', 'logs/torchrun.log', 'my-torchrun'])": None,
    "import subprocess\nsubprocess.run(words)": None,
    "import subprocess\nsubprocess.run(['echo', 'accelerate is nice'])": None,
    f"{MP}print('mp.spawn(f)')": None,
    "import mine as mp\nmp.spawn(f)": None,
    f"import os\n{MP}r = os.environ['LOCAL_RANK']\nmp.spawn(f)": None,
    f"import os\n{MP}r = os.getenv('RANK', 0)\nmp.spawn(f)": None,
    "import torch\nm = torch.nn.DataParallel(m)": None,
    f"{MP}mp.spawn(f)\ndef f(:": None,
    f"{MP}mp.spawn(f)\n" + "(" * 500 + ")" * 500: None,
    f"{MP}mp.spawn(f)\n#" + "x" * MOST_BYTES: None,
}


@pytest.mark.parametrize("text", SOURCES, ids=range(len(SOURCES)))
def test_scripts_that_start_ranks_are_recognized(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert starts_own_ranks(tmp_path / "train.py") == SOURCES[text]


def test_a_script_that_cannot_be_read_is_unknown(tmp_path):
    assert starts_own_ranks(tmp_path) is None


ROOT = Path(__file__).parents[3]


def test_of_all_scripts_here_only_those_that_start_ranks_are_found():
    scripts = [*ROOT.glob("tests/**/scripts/*.py"), *ROOT.glob("tests/support/recording/*.py")]
    scripts += [*ROOT.glob("tests/support/trainers/*.py"), *ROOT.glob("ddptop/demo/*.py")]
    found = {path.name for path in scripts if starts_own_ranks(path) is not None}
    assert len(scripts) > 40 and found == {"spawn.py"}
