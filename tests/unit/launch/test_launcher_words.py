"""What the words of a command reveal."""

from __future__ import annotations

import random
import shlex

import pytest

from ddptop_runner.launch.program import command_name, launcher_name
from ddptop_runner.model.spec import check_name

COMMANDS = {
    # command: (launcher, name)
    "torchrun --nproc-per-node 2 train.py --lr 1": ("torchrun", "train"),
    "torchrun --standalone -m pkg.train": ("torchrun", "train"),
    "/venv/bin/torchrun x/train_gpt.py": ("torchrun", "train_gpt"),
    "python -m torch.distributed.run --nproc-per-node 2 train.py": ("torchrun", "train"),
    "python3.11 -u -m pkg.train --x": ("python", "train"),
    "python train.py": ("python", "train"),
    "python examples/a.b.py": ("python", "a-b"),
    "python -c 'import x'": ("python", "python"),
    "accelerate launch --num_processes 2 t.py": ("accelerate", "t"),
    "accelerate-launch t.py": ("accelerate", "t"),
    "deepspeed --num_gpus 2 train.py": ("deepspeed", "train"),
    "horovodrun -np 2 python train.py": ("horovod", "train"),
    "mpirun --allow-run-as-root -np 2 python train.py": ("mpirun", "train"),
    "mpirun -np 2 ./train": ("mpirun", "mpirun"),
    "srun -n 2 python train.py": ("srun", "train"),
    "./train.py --x": ("python", "train"),
    "./run.sh": (None, "run"),
    "/opt/x/a.out 3": (None, "a"),
    "bash run_all.sh --big": (None, "run_all"),
    "bash -c 'cd /x && CUDA_LAUNCH_BLOCKING=1 exec python train.py --lr 1'": ("python", "train"),
    "sh -c 'torchrun t.py; '": ("torchrun", "t"),
    "sh -c 'an \"open quote'": (None, "sh"),
    "bash -c 'python a.py & python b.py & wait'": ("python", "b"),
    "bash -c 'python prepare.py && torchrun t.py'": ("torchrun", "t"),
    "bash -c 'mpirun -np 2 python t.py'": ("mpirun", "t"),
    "nohup bash -lc 'torchrun t.py'": ("torchrun", "t"),
    "bash -c 'torchrun t.py 2>&1 | tee log; echo ended'": ("torchrun", "t"),
    "bash -c 'while :; do python t.py; done'": ("python", "t"),
    "bash -c 'cd x\npython t.py\nexit 0'": ("python", "t"),
    "sh -c 'if true; then ./train; fi'": (None, "sh"),
    "env A=1 PATH=/usr/bin/python nohup torchrun t.py": ("torchrun", "t"),
    "nice -n 10 numactl --membind=0 ./train": (None, "train"),
    "uv run train.py --x": ("python", "train"),
    "uv run --with rich -- accelerate launch t.py": ("accelerate", "t"),
    "timeout 10 sleep": (None, "timeout"),
    "torchrun": ("torchrun", "torchrun"),
    "": (None, "job"),
    "...": (None, "job"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_launcher_and_script_are_read_from_a_command(command):
    argv = shlex.split(command)
    assert (launcher_name(argv), command_name(argv)) == COMMANDS[command]


@pytest.mark.parametrize("seed", range(4))
def test_any_words_get_a_name_that_a_job_can_have(seed):
    words = [
        "env",
        "A=1",
        "bash",
        "-c",
        "-lc",
        "torchrun",
        "python",
        "-m",
        "x.py",
        "--",
        "-",
        "&&",
        ";",
        "./x",
        "sudo",
        "uv",
        "run",
        "mpirun",
        "/",
        "//",
    ]
    words += ["", "a 'b", "cd x; python 'a", "日本", "\x00", "...", "cd /x && python a.py"]
    choose = random.Random(seed)
    for _ in range(1000):
        argv = [choose.choice(words) for _ in range(choose.randint(0, 6))]
        assert check_name(command_name(argv))
        launcher_name(argv)
