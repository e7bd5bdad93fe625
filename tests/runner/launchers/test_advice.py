"""What is said, or asked, before ranks of a script are started."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddptop_runner.launch.launchers.advice import Asked, advise
from ddptop_runner.launch.launchers.script_facts import UNKNOWN, script_facts

MP = "import torch.multiprocessing as mp\n"
L = "import lightning as L\nL.Trainer({})\n"
FABRIC = "from lightning.fabric import Fabric\nFabric({}).launch()\n"
DP = "import torch\nm = torch.nn.DataParallel(m)\n"
HVD = "import horovod.torch as hvd\nhvd.init()\n"
MPI = "from mpi4py import MPI\nr = MPI.COMM_WORLD.Get_rank()\n"
TF = "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n"
PLAIN = "import torch\no = torch.optim.SGD(m.parameters())\n"
HF = "from transformers import Trainer, TrainingArguments\nTrainer(m, TrainingArguments({}))\n"
ACC = "from accelerate import Accelerator\nAccelerator({})\n"
INIT = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
OPTION = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\n"


def advice(folder: Path, text: str, ranks: int | None, devices: int, **more: object):
    (folder / "train.py").write_text(textwrap.dedent(text))
    found = script_facts(folder / "train.py", ranks=ranks or 2, devices=devices)
    return advise(found, Asked("train.py", ranks, devices, **more))


CASES = {
    # text, ranks, devices: "asks" or "note", the launcher and ranks that are right, words
    "spawn": (
        f"{MP}mp.spawn(f)",
        4,
        4,
        "asks",
        ("none", None),
        ["mp.spawn (line 2)", "each of the 4 ranks would start more"],
    ),
    "spawn, nobody knows how many": (
        f"{MP}mp.spawn(f)",
        None,
        0,
        "asks",
        ("none", None),
        ["each rank would start more"],
    ),
    "spawn, one rank": (
        f"{MP}mp.spawn(f)",
        1,
        1,
        "note",
        ("none", None),
        ["starts its own ranks"],
    ),
    "perhaps spawn": (f"{MP}if go:\n    mp.spawn(f)", 2, 2, "asks", ("none", None), ["mp.spawn"]),
    "perhaps spawn, written for ranks": (
        f"{MP}{INIT}if go:\n    mp.spawn(f)",
        2,
        2,
        None,
        None,
        [],
    ),
    "another launcher": (
        "import os\nos.system('torchrun t.py')",
        2,
        2,
        "asks",
        ("none", None),
        ["os.system"],
    ),
    "DataParallel": (
        DP,
        4,
        4,
        "asks",
        ("none", None),
        ["torch.nn.DataParallel (line 2)", "4 ranks would each train independently on all 4 GPUs"],
    ),
    "DataParallel, one rank": (DP, 1, 4, None, None, []),
    "DataParallel of one device": (DP.replace("(m)", "(m, device_ids=[0])"), 2, 2, None, None, []),
    "DataParallel, written for ranks": (f"{INIT}{DP}", 2, 2, None, None, []),
    "MirroredStrategy": (
        TF,
        2,
        2,
        "asks",
        ("none", None),
        ["tf.distribute.MirroredStrategy", "on all 2 GPUs"],
    ),
    "TensorFlow": (
        "import tensorflow as tf\n",
        2,
        2,
        "asks",
        ("none", None),
        ["trains with tensorflow"],
    ),
    "TensorFlow beside torch": ("import tensorflow, torch\n", 2, 2, None, None, []),
    "JAX": ("import jax\n", 2, 2, "asks", ("none", None), ["trains with jax"]),
    "Horovod": (
        HVD,
        3,
        4,
        "asks",
        ("horovod", 3),
        [
            "gets its rank from horovodrun: hvd.init (line 2)",
            "3 ranks would each train independently",
        ],
    ),
    "Horovod, one rank": (HVD, 1, 1, None, None, []),
    "Horovod and TensorFlow": (
        f"import tensorflow\n{HVD}",
        2,
        2,
        "asks",
        ("horovod", 2),
        ["horovodrun"],
    ),
    "mpi4py": (MPI, 2, 0, "asks", ("mpi", 2), ["gets its rank from mpirun: MPI.COMM_WORLD"]),
    "mpi4py, written for ranks": (f"{MPI}{INIT}", 2, 0, None, None, []),
    "a variable of mpirun": (
        "import os\nr = os.environ['OMPI_COMM_WORLD_RANK']",
        2,
        0,
        "asks",
        ("mpi", 2),
        ["reads OMPI_COMM_WORLD_RANK"],
    ),
    "a variable of either": (
        "import os\nr = os.environ.get('RANK') or os.getenv('OMPI_COMM_WORLD_RANK')",
        2,
        0,
        None,
        None,
        [],
    ),
    "Lightning, as many": (L.format("devices=2, strategy='ddp'"), 2, 2, None, None, []),
    "Lightning, all devices": (L.format(""), 2, 2, None, None, []),
    "Lightning, all of fewer": (
        L.format("devices=-1"),
        2,
        4,
        "asks",
        (None, 4),
        ["Trainer(devices=-1)", "expects 4 ranks; Lightning rejects 2 ranks"],
    ),
    "Lightning, fewer": (
        L.format("devices=2"),
        4,
        4,
        "asks",
        (None, 2),
        ["(line 2) expects 2 ranks; Lightning rejects 4 ranks"],
    ),
    "Lightning, fewer in words": (
        L.format("devices='2'"),
        4,
        4,
        "asks",
        (None, 2),
        ["expects 2 ranks"],
    ),
    "Lightning, a list": (L.format("devices=[0, 1]"), 4, 4, "asks", (None, 2), ["expects 2 ranks"]),
    "Lightning, more than there are": (
        L.format("devices=8"),
        4,
        4,
        "asks",
        ("none", None),
        ["expects 8 ranks"],
    ),
    "Lightning, more on CPUs": (
        L.format("devices=4"),
        2,
        0,
        "asks",
        (None, 4),
        ["expects 4 ranks"],
    ),
    "Lightning, one of CPUs": (
        L.format(""),
        2,
        0,
        "asks",
        ("none", None),
        ["uses one device: 2 ranks would each train independently"],
    ),
    "Lightning, one device": (
        L.format("devices=1"),
        4,
        4,
        "asks",
        ("none", None),
        ["uses one device"],
    ),
    "Lightning, one of several": (
        L.format("devices=1, strategy='ddp'"),
        2,
        2,
        "asks",
        (None, 1),
        ["expects 1 rank; "],
    ),
    "Lightning, CPUs beside GPUs": (
        L.format("accelerator='cpu'"),
        2,
        2,
        "asks",
        ("none", None),
        ["uses one device"],
    ),
    "Lightning, who knows": (L.format("devices=n"), 4, 4, None, None, []),
    "Lightning, told more": (L.format("**more"), 4, 4, None, None, []),
    "Lightning on other devices": (L.format("accelerator='tpu'"), 4, 4, None, None, []),
    "Lightning over hosts": (L.format("devices=2, num_nodes=2"), 4, 4, None, None, []),
    "Lightning that spawns": (
        L.format("devices=2, strategy='ddp_spawn'"),
        2,
        2,
        "asks",
        ("none", None),
        ["L.Trainer (line 2) uses strategy ddp_spawn", "fails or hangs"],
    ),
    "Lightning that forks": (
        L.format("strategy='ddp_notebook_find_unused_parameters_true'"),
        2,
        2,
        "asks",
        ("none", None),
        ["strategy ddp_notebook"],
    ),
    "Lightning that spawns by an object": (
        L.format("strategy=DDPStrategy(start_method='spawn')"),
        2,
        2,
        "asks",
        ("none", None),
        ["DDPStrategy(spawn)"],
    ),
    "Lightning's own way by an object": (L.format("strategy=DDPStrategy()"), 2, 2, None, None, []),
    "Lightning, nobody knows how many": (L.format("devices=2"), None, 0, None, None, []),
    "Fabric": (
        FABRIC.format("devices=2"),
        4,
        4,
        "asks",
        (None, 2),
        ["Fabric(devices=2)", "expects 2 ranks"],
    ),
    "accelerate on GPUs": (ACC.format(""), 2, 2, None, None, []),
    "accelerate on CPUs": (
        ACC.format(""),
        2,
        0,
        "note",
        ("accelerate", 2),
        ["Accelerator (line 2)", "a separate training"],
    ),
    "accelerate told of CPUs": (ACC.format("cpu=True"), 2, 0, None, None, []),
    "Trainer on CPUs": (
        HF.format("'x'"),
        2,
        0,
        "note",
        ("accelerate", 2),
        ["on CPUs, Trainer (line 2)"],
    ),
    "Trainer told of CPUs": (HF.format("'x', use_cpu=True"), 2, 0, None, None, []),
    "Trainer on GPUs": (HF.format("'x'"), 2, 2, None, None, []),
    "DeepSpeed": ("import deepspeed\ndeepspeed.initialize(model=m)", 2, 2, None, None, []),
    "DeepSpeed with an option": (
        f"import deepspeed\n{OPTION}deepspeed.initialize()",
        2,
        2,
        "note",
        ("deepspeed", 2),
        ["expects --local_rank"],
    ),
    "an option for the local rank": (
        f"{INIT}{OPTION}",
        2,
        2,
        "note",
        None,
        ["--local_rank, which torchrun no longer passes"],
    ),
    "an option, and the variable": (
        f"import os\n{OPTION}r = os.environ['LOCAL_RANK']",
        2,
        2,
        None,
        None,
        [],
    ),
    "torchrun's way": (f"{INIT}{PLAIN}", 2, 2, None, None, []),
    "nothing of ranks": (
        PLAIN,
        2,
        2,
        "note",
        ("none", None),
        ["train.py does not appear to join a process group", "2 ranks"],
    ),
    "nothing of ranks, one": (PLAIN, 1, 1, None, None, []),
    "who knows what it imports": (f"import fairseq\n{PLAIN}", 2, 2, None, None, []),
    "nothing at all": ("", 2, 2, None, None, []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_is_said(tmp_path, case):
    text, ranks, devices, how, right, words = case
    found = advice(tmp_path, text, ranks, devices)
    assert (found and ("asks" if found.asks else "note")) == how
    if found is None:
        return
    remedy = found.remedy and (found.remedy.launcher, found.remedy.nproc)
    assert remedy == right
    for word in words:
        assert word in found.problem


def test_one_process_is_told_of_data_parallel_only(tmp_path):
    assert advice(tmp_path, HF.format("'x'"), 1, 2, launcher="none").remedy.launcher is None
    assert advice(tmp_path, HF.format("'x'"), 1, 1, launcher="none") is None
    for text in (f"{MP}mp.spawn(f)", DP, TF, HVD, PLAIN):
        assert advice(tmp_path, text, 1, 4, launcher="none") is None


def test_the_right_launcher_is_not_told_of_itself(tmp_path):
    assert advice(tmp_path, HVD, 2, 2, launcher="horovod") is None
    assert advice(tmp_path, MPI, 2, 2, launcher="mpi") is None
    assert advice(tmp_path, HVD, 2, 2, launcher="torchrun").remedy.launcher == "horovod"
    assert advice(tmp_path, ACC.format(""), 2, 0, launcher="accelerate") is None


def test_accelerate_may_be_told_by_a_variable(tmp_path):
    assert advice(tmp_path, ACC.format(""), 2, 0, cpu_said=True) is None


def test_nothing_is_said_of_what_is_unknown():
    assert advise(UNKNOWN, Asked("train.py", 8, 8)) is None
