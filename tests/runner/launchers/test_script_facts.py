"""What a script's source tells, and what it does not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddptop_runner.launch.launchers.script_facts import ScriptFacts, script_facts

MP = "import torch.multiprocessing as mp\n"
NN = "import torch\nfrom torch import nn\n"
TF = "import tensorflow as tf\n"


def facts(folder: Path, text: str, *args: str, devices: int = 2, **others: str) -> ScriptFacts:
    """Of a script of this text, beside these modules, on so many GPUs."""
    for name, code in others.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
    (folder / "train.py").write_text(textwrap.dedent(text))
    return script_facts(folder / "train.py", args, ranks=2, devices=devices)


def seen(found: ScriptFacts) -> str:
    """`spawn`, and `spawn?` where a condition may keep it from running."""
    words = dict.fromkeys(f"{one.what}{'' if one.sure else '?'}" for one in found.sightings)
    return " ".join(words)


SNIPPETS = {
    # what is written: what is seen
    "spawn by an alias": (f"{MP}mp.spawn(f)", "spawn"),
    "spawn by its full name": ("import torch\ntorch.multiprocessing.spawn(f)", "spawn"),
    "spawn by its own name": ("from torch.multiprocessing import spawn as go\ngo(f)", "spawn"),
    "spawn under the guard of a script": (
        f"{MP}if __name__ == '__main__':\n    mp.spawn(f)",
        "spawn",
    ),
    "spawn in a function that is called": (f"{MP}def main():\n    mp.spawn(f)\nmain()", "spawn"),
    "spawn two calls away": (
        f"{MP}def a():\n    mp.spawn(f)\ndef b():\n    a()\nif __name__ == '__main__':\n    b()",
        "spawn",
    ),
    "spawn in a method": (
        f"{MP}class Run:\n    def go(self):\n        mp.spawn(f)\nRun().go()",
        "spawn",
    ),
    "a function handed to a decorator": (
        f"import hydra\n{MP}@hydra.main()\ndef main(c):\n    mp.spawn(f)\n",
        "spawn",
    ),
    "start_processes": (f"{MP}mp.start_processes(f)", "spawn"),
    "a star": ("from torch.multiprocessing import *\nspawn(f)", "spawn"),
    "a name for a module": ("import torch\nm = torch.multiprocessing\nm.spawn(f)", "spawn"),
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
    "processes that join a group": (
        "import torch.distributed as dist\nfrom torch.multiprocessing import Process\n"
        "def run(r):\n    dist.init_process_group('gloo', rank=r, world_size=2)\n"
        "for r in range(2):\n    Process(target=run, args=(r,)).start()",
        "process init",
    ),
    "processes of a context": (
        "import torch.distributed as dist, torch.multiprocessing as mp\n"
        "def join(r):\n    dist.init_process_group('gloo', rank=r, world_size=2)\n"
        "def run(r):\n    join(r)\n"
        "ctx = mp.get_context('spawn')\nctx.Process(target=run).start()",
        "process init",
    ),
    "processes that do something else": (
        "from multiprocessing import Process\ndef run():\n    pass\nProcess(target=run).start()",
        "",
    ),
    "another launcher": ("import subprocess\nsubprocess.run(['torchrun', 't.py'])", "subprocess"),
    "another launcher in a shell": (
        "import os\nos.system(f'python -m torch.distributed.run --x {1} t.py')",
        "subprocess",
    ),
    "a program that launches nothing": ("import subprocess\nsubprocess.run(['ls'])", ""),
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
    "DataParallel of several": (
        f"{NN}if torch.cuda.device_count() > 1:\n    nn.DataParallel(m)",
        "data_parallel",
    ),
    "DataParallel in an expression": (
        f"{NN}n = torch.cuda.device_count()\nm = nn.DataParallel(m) if n > 1 else m",
        "data_parallel",
    ),
    "Lightning": ("import lightning as L\nL.Trainer(devices=2)", "lightning"),
    "Lightning by its old name": ("import pytorch_lightning as pl\npl.Trainer()", "lightning"),
    "Lightning's own trainer": ("from lightning.pytorch import Trainer\nTrainer()", "lightning"),
    "Lightning's command line": (
        "from lightning.pytorch.cli import LightningCLI\nLightningCLI(M)",
        "lightning_cli",
    ),
    "Fabric": ("from lightning.fabric import Fabric\nFabric(devices=2).launch()", "fabric"),
    "DeepSpeed": ("import deepspeed as ds\ne, *_ = ds.initialize(model=m)", "deepspeed"),
    "Horovod": ("import horovod.torch as hvd\nhvd.init()", "horovod"),
    "Horovod of Keras": ("import horovod.tensorflow.keras as hvd\nhvd.init()", "horovod"),
    "MirroredStrategy": (f"{TF}s = tf.distribute.MirroredStrategy()", "mirrored"),
    "MirroredStrategy by its name": (
        "from tensorflow.distribute import MirroredStrategy\nMirroredStrategy()",
        "mirrored",
    ),
    "several workers": (f"{TF}tf.distribute.MultiWorkerMirroredStrategy()", "multi_worker"),
    "accelerate": ("from accelerate import Accelerator\na = Accelerator()", "accelerator"),
    "the Trainer of transformers": (
        "from transformers import Trainer, TrainingArguments as TA\nTrainer(args=TA('x'))",
        "hf_trainer hf_arguments",
    ),
    "a Trainer of one's own": (
        "from transformers import Trainer\nclass Mine(Trainer):\n    pass\nMine().train()",
        "hf_trainer",
    ),
    "trl": ("import trl\ntrl.SFTTrainer(m)", "hf_trainer"),
    "apex": ("from apex.parallel import DistributedDataParallel as D\nD(m)", "torch_ddp"),
    "DDP": ("from torch.nn.parallel import DistributedDataParallel as D\nD(m)", "torch_ddp"),
    "mpi4py": ("from mpi4py import MPI\nr = MPI.COMM_WORLD.Get_rank()", "mpi"),
    # --- traps ---
    "a name in a string": (f"{MP}print('mp.spawn(f)')", ""),
    "a name in a comment": (f"{MP}# mp.spawn(f)\n", ""),
    "a name in a docstring": (f'{NN}"""nn.DataParallel(m) is old"""\n', ""),
    "an import that is not used": ("from torch.nn import DataParallel\nimport horovod.torch", ""),
    "a function that is never called": (
        f"{TF}def old():\n    tf.distribute.MirroredStrategy()\n",
        "",
    ),
    "functions that only call each other": (
        f"{MP}def a():\n    b()\ndef b():\n    mp.spawn(a)\n",
        "",
    ),
    "a function that only a comment names": (f"{MP}def old():\n    mp.spawn(f)\n# old()\n", ""),
    "a method that is never called": (
        f"{MP}class A:\n    def old(self):\n        mp.spawn(f)\nA()",
        "",
    ),
    "if False": (f"{NN}if False:\n    nn.DataParallel(m)", ""),
    "if not True": (f"{NN}if not True:\n    nn.DataParallel(m)", ""),
    "for type checkers": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import horovod.torch as hvd\n"
        "hvd.init()",
        "",
    ),
    "called for type checkers": (
        f"from typing import TYPE_CHECKING\n{MP}if TYPE_CHECKING:\n    mp.spawn(f)",
        "",
    ),
    "after the end": (f"{MP}import sys\nsys.exit(0)\nmp.spawn(f)", ""),
    "after a return": (f"{MP}def main():\n    return\n    mp.spawn(f)\nmain()", ""),
    "a spawn of somebody else": ("import mine as mp\nmp.spawn(f)", ""),
    "a Trainer of somebody else": ("from mine import Trainer\nTrainer()", ""),
    "an Accelerator of one's own": ("class Accelerator:\n    pass\nAccelerator()", ""),
    # --- conditions ---
    "a condition that nobody knows": (f"{MP}if go:\n    mp.spawn(f)", "spawn?"),
    "a call under one": (f"{MP}def a():\n    mp.spawn(f)\nif go:\n    a()", "spawn?"),
    "both ways": (f"{MP}if go:\n    mp.spawn(f)\nelse:\n    mp.spawn(g)", "spawn?"),
    "what an error leads to": (f"{MP}try:\n    x()\nexcept E:\n    mp.spawn(f)", "spawn?"),
    "for a launcher, or else by itself": (
        f"{MP}import os\nif 'LOCAL_RANK' in os.environ:\n    main()\nelse:\n    mp.spawn(f)",
        "",
    ),
    "out before it under a launcher": (
        f"{MP}import os\ndef go():\n    if os.environ.get('RANK') is not None:\n        return\n"
        "    mp.spawn(f)\ngo()",
        "",
    ),
    "a rank that is none": (
        f"{NN}import os\nrank = int(os.environ.get('RANK', -1))\n"
        "if rank == -1:\n    nn.DataParallel(m)",
        "",
    ),
    "the number of ranks": (
        f"{NN}import os\nw = int(os.getenv('WORLD_SIZE', '1'))\nif w == 1:\n    nn.DataParallel(m)",
        "",
    ),
    "a truth of nanoGPT": (
        f"{NN}import os\nddp = int(os.environ.get('RANK', -1)) != -1\n"
        "m = m if ddp else nn.DataParallel(m)",
        "",
    ),
    "a number that is two things": (
        f"{NN}if go:\n    n_gpu = torch.cuda.device_count()\nelse:\n"
        "    n_gpu = device_count_of(x)\nif n_gpu > 1:\n    nn.DataParallel(m)",
        "data_parallel?",
    ),
}


@pytest.mark.parametrize("case", SNIPPETS.values(), ids=list(SNIPPETS))
def test_what_is_seen(tmp_path, case):
    text, expected = case
    found = facts(tmp_path, text)
    assert found.known
    assert seen(found) == expected


SWITCH = f"""
{MP}import argparse
p = argparse.ArgumentParser()
p.add_argument('-s', '--use-spawn', action='store_true')
p.add_argument('--no-spawn', dest='spawns', action='store_false')
args = p.parse_args()
"""


@pytest.mark.parametrize(
    ("test", "args", "expected"),
    [
        ("args.use_spawn", [], ""),
        ("args.use_spawn", ["--use-spawn"], "spawn"),
        ("args.use_spawn", ["-s"], "spawn"),
        ("not args.use_spawn", ["-s"], ""),
        ("args.spawns", [], "spawn"),
        ("args.spawns and torch_is_there", ["--no-spawn"], ""),
        ("args.spawns or torch_is_there", [], "spawn"),
        ("args.other", ["--other"], "spawn?"),
    ],
)
def test_a_switch_of_the_command_line_decides(tmp_path, test, args, expected):
    assert seen(facts(tmp_path, f"{SWITCH}if {test}:\n    mp.spawn(f)", *args)) == expected


@pytest.mark.parametrize(
    ("test", "devices", "expected"),
    [
        ("torch.cuda.device_count() > 1", 4, "data_parallel"),
        ("torch.cuda.device_count() > 1", 1, ""),
        ("torch.cuda.device_count() > 1", 0, ""),
        ("torch.cuda.is_available()", 0, ""),
        ("torch.cuda.is_available() and torch.cuda.device_count() >= 2", 2, "data_parallel"),
        ("1 < torch.cuda.device_count()", 2, "data_parallel"),
        ("torch.cuda.device_count()", 0, ""),
    ],
)
def test_the_devices_decide(tmp_path, test, devices, expected):
    found = facts(tmp_path, f"{NN}if {test}:\n    nn.DataParallel(m)", devices=devices)
    assert seen(found) == expected


def test_modules_of_its_own_are_followed(tmp_path):
    found = facts(
        tmp_path,
        "from pkg.run import main as go\nimport helpers\ngo()\n",
        pkg__run="from .deep import start\ndef main():\n    start()\n",
        pkg__deep=f"{MP}def start():\n    mp.spawn(f)\nif __name__ == '__main__':\n    start()\n",
        helpers="import horovod.torch as hvd\ndef never():\n    hvd.init()\n",
    )
    (one,) = found.sightings
    assert (one.what, one.file, one.line, one.sure) == ("spawn", "pkg/deep.py", 3, True)
    assert one.where == "pkg/deep.py, line 3"
    assert found.imports == {"torch", "horovod"}


def test_what_an_imported_file_does_only_when_it_is_run(tmp_path):
    other = f"{MP}if __name__ == '__main__':\n    mp.spawn(f)\n"
    assert seen(facts(tmp_path, "import other\n", other=other)) == ""


def test_names_come_through_modules_of_its_own(tmp_path):
    common = "import torch.multiprocessing as mp\nfrom transformers import Trainer\n"
    common += "class Mine(Trainer):\n    pass\n"
    text = "from common import mp, Mine\nmp.spawn(f)\nMine()\n"
    assert seen(facts(tmp_path, text, common=common)) == "spawn hf_trainer"
    assert seen(facts(tmp_path, "from common import *\nMine()\n", common=common)) == "hf_trainer"


def test_circles_of_imports_end(tmp_path):
    found = facts(tmp_path, "import a\na.go()\n", a="import b\n", b="import a\nimport train\n")
    assert found.known and found.sightings == ()


@pytest.mark.parametrize("text", ["def f(:", "\x00", "print 'python 2'", "(" * 500 + ")" * 500])
def test_what_is_not_this_language_is_unknown(tmp_path, text):
    assert not facts(tmp_path, text).known
    assert seen(facts(tmp_path, f"import other\n{MP}mp.spawn(f)", other=text)) == "spawn"


def test_a_program_wrote_it(tmp_path):
    chain = "".join(f"elif x == {i}:\n    mp.spawn({i})\n" for i in range(3000))
    assert not facts(tmp_path, f"{MP}if x:\n    pass\n{chain}").known


def test_a_mark_of_byte_order_is_no_word(tmp_path):
    (tmp_path / "train.py").write_bytes(b"\xef\xbb\xbf" + f"{MP}mp.spawn(f)".encode())
    assert seen(script_facts(tmp_path / "train.py")) == "spawn"


def test_what_cannot_be_read_is_unknown(tmp_path):
    assert not script_facts(tmp_path / "none.py").known
    assert not script_facts(tmp_path).known
    (tmp_path / "long.py").write_text("# a line\n" * 100_000)
    assert not script_facts(tmp_path / "long.py").known


READS = {
    "os.environ['LOCAL_RANK']": True,
    "os.environ.get('RANK', 0)": True,
    "os.getenv('WORLD_SIZE')": True,
    "'RANK' in os.environ": True,
    "dist.init_process_group('nccl')": True,
    "dist.init_process_group('nccl', rank=0, world_size=1)": False,
    "os.environ['RANK'] = '0'": False,
    "os.environ['MASTER_PORT']": False,
    "print('RANK')": False,
}


@pytest.mark.parametrize("line", READS)
def test_a_script_that_is_written_for_a_launcher(tmp_path, line):
    found = facts(tmp_path, f"import os\nimport torch.distributed as dist\n{line}\n")
    assert found.takes_ranks is READS[line]


def test_what_a_call_is_told(tmp_path):
    text = """
        import lightning as L
        from lightning.pytorch.strategies import DDPStrategy
        L.Trainer(devices=-1, strategy=DDPStrategy(start_method="spawn"), max_epochs=n, **more)
    """
    (one,) = facts(tmp_path, text).sightings
    assert one.told == {
        "devices": -1,
        "strategy": "DDPStrategy(spawn)",
        "max_epochs": "n",
        "**": "more",
    }
    assert one.name == "L.Trainer" and one.where == "line 4"


@pytest.mark.parametrize(
    ("imports", "plain"),
    [
        ("import os, torch\nfrom torchvision import models\nimport numpy as np", True),
        ("import torch, fairseq", False),
        ("from timm import x", False),
        ("import helper", False),
    ],
)
def test_whether_all_that_it_imports_is_known(tmp_path, imports, plain):
    assert facts(tmp_path, imports).is_plain is plain


def test_a_long_script_is_read_to_its_end(tmp_path):
    body = "\n".join(
        f"def step_{i}(x, y):\n    z = x * {i} + y\n    if z > {i}:\n        return [z, x]\n"
        f"    return step_{max(i - 1, 0)}(z, y)"
        for i in range(400)
    )
    (tmp_path / "train.py").write_text(f"{MP}{body}\nmp.spawn(step_399)\n")
    assert seen(script_facts(tmp_path / "train.py")) == "spawn"
