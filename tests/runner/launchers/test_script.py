"""What a script's source reveals, and what it does not."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from ddptop_runner.launch.advice import MOST_FILES, Script, read_script

MP = "import torch.multiprocessing as mp\n"
NN = "import torch\nfrom torch import nn\n"
TF = "import tensorflow as tf\n"


def read(folder: Path, text: str, **others: str) -> Script:
    """A script with this text, in a folder with these modules."""
    for name, code in others.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
    (folder / "train.py").write_text(textwrap.dedent(text))
    return read_script(folder / "train.py")


def seen(script: Script) -> str:
    return " ".join(dict.fromkeys(call.what for call in script.calls))


SNIPPETS = {
    # source text: what is detected
    "spawn by an alias": (f"{MP}mp.spawn(f)", "spawn"),
    "spawn by its full name": ("import torch\ntorch.multiprocessing.spawn(f)", "spawn"),
    "spawn by its own name": ("from torch.multiprocessing import spawn as go\ngo(f)", "spawn"),
    "spawn in a function": (f"{MP}def main():\n    mp.spawn(f)\nmain()", "spawn"),
    "spawn under a condition": (f"{MP}if go:\n    mp.spawn(f)", "spawn"),
    "an import in a function": (
        "def main():\n    import torch.multiprocessing as mp\n    mp.spawn(f)",
        "spawn",
    ),
    "start_processes": (f"{MP}mp.start_processes(f)", "spawn"),
    "accelerate's launcher for notebooks": (
        "from accelerate import notebook_launcher\nnotebook_launcher(f)",
        "spawn",
    ),
    "elastic's own API": (
        "from torch.distributed.launcher.api import elastic_launch\nelastic_launch(c, f)()",
        "spawn",
    ),
    "Ray": ("from ray.train.torch import TorchTrainer as T\nT(f).fit()", "spawn"),
    "XLA": ("import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f)", "spawn"),
    "another launcher": ("import subprocess\nsubprocess.run(['torchrun', 't.py'])", "command"),
    "another launcher by its path": (
        "import subprocess\nsubprocess.run(['/v/bin/accelerate', 'launch', 't.py'])",
        "command",
    ),
    "another launcher in a shell": (
        "import os\nos.system(f'python -m torch.distributed.run --x {1} t.py')",
        "command",
    ),
    "a program that launches nothing": ("import subprocess\nsubprocess.run(['ls'])", ""),
    "a command that nobody knows": ("import subprocess\nsubprocess.run(words)", ""),
    "a word of a launcher in another program": (
        "import subprocess\nsubprocess.run(['echo', 'accelerate is nice'])",
        "",
    ),
    "DataParallel": (f"{NN}m = nn.DataParallel(m)", "data_parallel"),
    "DataParallel by another name": (
        "from torch.nn import DataParallel as DP\nm = DP(m)",
        "data_parallel",
    ),
    "DataParallel of parallel": (
        "import torch\ntorch.nn.parallel.DataParallel(m)",
        "data_parallel",
    ),
    "data_parallel": (f"{NN}y = nn.parallel.data_parallel(m, x)", "data_parallel"),
    "Lightning": ("import lightning as L\nL.Trainer(devices=2)", "lightning"),
    "Lightning by its old name": ("import pytorch_lightning as pl\npl.Trainer()", "lightning"),
    "Lightning's command line": (
        "from lightning.pytorch.cli import LightningCLI\nLightningCLI(M)",
        "lightning",
    ),
    "Fabric": ("from lightning.fabric import Fabric\nFabric(devices=2).launch()", "parallel"),
    "DeepSpeed": ("import deepspeed as ds\ne, *_ = ds.initialize(model=m)", "parallel"),
    "accelerate": ("from accelerate import Accelerator\na = Accelerator()", "parallel"),
    "a Trainer of one's own": (
        "from transformers import Trainer\nclass Mine(Trainer):\n    pass\nMine().train()",
        "parallel",
    ),
    "apex": ("from apex.parallel import DistributedDataParallel as D\nD(m)", "parallel"),
    "DDP": ("from torch.nn.parallel import DistributedDataParallel as D\nD(m)", "parallel"),
    "Horovod": ("import horovod.torch as hvd\nhvd.init()", "horovod"),
    "Horovod of Keras": ("import horovod.tensorflow.keras as hvd\nhvd.init()", "horovod"),
    "MirroredStrategy": (f"{TF}s = tf.distribute.MirroredStrategy()", "mirrored"),
    "MirroredStrategy by its name": (
        "from tensorflow.distribute import MirroredStrategy\nMirroredStrategy()",
        "mirrored",
    ),
    "several workers": (f"{TF}tf.distribute.MultiWorkerMirroredStrategy()", "mirrored"),
    # --- traps ---
    "a name in a string": (f"{MP}print('mp.spawn(f)')", ""),
    "a name in a comment": (f"{MP}# mp.spawn(f)\n", ""),
    "a name in a docstring": (f'{NN}"""nn.DataParallel(m) is old"""\n', ""),
    "an import that is not used": ("from torch.nn import DataParallel\nimport horovod.torch", ""),
    "a spawn of somebody else": ("import mine as mp\nmp.spawn(f)", ""),
    "a Trainer of somebody else": ("from mine import Trainer\nTrainer()", ""),
    "an Accelerator of one's own": ("class Accelerator:\n    pass\nAccelerator()", ""),
}


@pytest.mark.parametrize("case", SNIPPETS.values(), ids=list(SNIPPETS))
def test_what_is_seen(tmp_path, case):
    text, expected = case
    assert seen(read(tmp_path, text)) == expected


def test_the_scripts_own_modules_are_read(tmp_path):
    script = read(
        tmp_path,
        "from pkg.run import main as go\nfrom pkg import part\nimport helpers\ngo()\n",
        pkg__run="from .deep import start\nfrom . import beside\ndef main():\n    start()\n",
        pkg__deep=f"{MP}def start():\n    mp.spawn(f)\n",
        pkg__beside="import numpy",
        pkg__part="import scipy",
        helpers="import horovod.torch as hvd\n",
    )
    (one,) = script.calls
    assert (one.what, one.where) == ("spawn", "pkg/deep.py, line 3")
    assert script.imports == {"torch", "horovod", "numpy", "scipy"}


def test_circles_of_imports_end(tmp_path):
    script = read(tmp_path, "import a\na.go()\n", a="import b\n", b="import a\nimport train, os\n")
    assert script.imports == {"os"}


@pytest.mark.parametrize("text", ["def f(:", "\x00", "print 'python 2'", "(" * 500 + ")" * 500])
def test_what_is_not_this_language_is_unknown(tmp_path, text):
    assert read(tmp_path, text) == Script()
    assert read(tmp_path, f"import other\n{MP}mp.spawn(f)", other=text) == Script()


def test_a_script_of_many_files_or_bytes_is_unknown(tmp_path):
    names = [f"m{number}" for number in range(MOST_FILES - 1)]
    text = f"import {', '.join(names)}\n{MP}mp.spawn(f)"
    assert seen(read(tmp_path, text, **dict.fromkeys(names, ""))) == "spawn"
    assert read(tmp_path, f"import other\n{text}", other="") == Script()
    assert read(tmp_path, f"{MP}mp.spawn(f)\n" + "# a line\n" * 100_000) == Script()


@pytest.mark.skipif(
    sys.version_info[:2] not in ((3, 11), (3, 12)), reason="other versions of Python parse it"
)
def test_a_program_wrote_it(tmp_path):
    chain = "".join(f"elif x == {i}:\n    mp.spawn({i})\n" for i in range(3000))
    assert read(tmp_path, f"{MP}if x:\n    pass\n{chain}") == Script()


def test_a_mark_of_byte_order_is_no_word(tmp_path):
    (tmp_path / "train.py").write_bytes(b"\xef\xbb\xbf" + f"{MP}mp.spawn(f)".encode())
    assert seen(read_script(tmp_path / "train.py")) == "spawn"


def test_what_cannot_be_read_is_unknown(tmp_path):
    assert read_script(tmp_path / "none.py") == Script()
    assert read_script(tmp_path) == Script()


READS = {
    "os.environ['LOCAL_RANK']": True,
    "os.environ.get('RANK', 0)": True,
    "os.getenv('WORLD_SIZE')": True,
    "number('WORLD_SIZE')": True,
    "'RANK' in os.environ": True,
    "dist.init_process_group('nccl')": True,
    "dist.init_process_group('nccl', rank=0, world_size=1)": False,
    "os.environ['RANK'] = '0'": False,
    "os.environ['RANK'] = '0'; dist.init_process_group('nccl')": False,
    "os.environ['MASTER_PORT']": False,
    "print('RANK 0')": False,
}


@pytest.mark.parametrize("line", READS)
def test_a_script_that_is_written_for_a_launcher(tmp_path, line):
    script = read(tmp_path, f"import os\nimport torch.distributed as dist\n{line}\n")
    assert script.takes_ranks is READS[line]


def test_what_a_call_gets(tmp_path):
    text = """
        import lightning as L
        from lightning.pytorch.strategies import DDPStrategy
        L.Trainer(devices=[0, 1], strategy=DDPStrategy(), max_epochs=n, limit=1 + 1, **more)
    """
    (one,) = read(tmp_path, text).calls
    assert one.arguments == {
        "devices": [0, 1],
        "strategy": "DDPStrategy",
        "max_epochs": "n",
        "limit": None,
        "**": "more",
    }
    assert one.name == "L.Trainer" and one.where == "line 4"
