"""The exact command of each launcher, and what is refused."""

from __future__ import annotations

import shlex

import pytest

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.launchers import (
    LAUNCHERS,
    PROGRAMS,
    Tools,
    Wanted,
    command_name,
    launcher_name,
    recipe,
)
from ddptop_runner.model.spec import Device

CPU = {"device_count": 0}
FOUR = {"devices": [Device(index=i, uuid=f"GPU-{i}") for i in (0, 1, 2, 3)], "device_count": 4}
TWO = {"devices": [Device(index=i, uuid=f"GPU-{i}") for i in (2, 5)], "device_count": 2}
QUEUED = {"device_count": 2}
CONFIG = {"accelerate_config": "/h/default_config.yaml"}

COMMANDS = {
    # (launcher, requested, tools): the command
    "torchrun": ("torchrun", 2, CPU, {}, "torchrun --standalone --nproc-per-node 2 t.py --lr 1"),
    "accelerate on GPUs": (
        "accelerate",
        2,
        TWO,
        {},
        "accelerate launch --num_processes 2 --num_machines 1 --main_process_port 0"
        " --mixed_precision no --dynamo_backend no --multi_gpu t.py --lr 1",
    ),
    "accelerate on one GPU": (
        "accelerate",
        1,
        TWO,
        {},
        "accelerate launch --num_processes 1 --num_machines 1 --main_process_port 0"
        " --mixed_precision no --dynamo_backend no t.py --lr 1",
    ),
    "accelerate on CPUs": (
        "accelerate",
        2,
        CPU,
        {},
        "env ACCELERATE_USE_CPU=true accelerate launch --num_processes 2 --num_machines 1"
        " --main_process_port 0 --mixed_precision no --dynamo_backend no --multi_gpu t.py --lr 1",
    ),
    "accelerate on one CPU": (
        "accelerate",
        1,
        CPU,
        {},
        "accelerate launch --num_processes 1 --num_machines 1 --main_process_port 0"
        " --mixed_precision no --dynamo_backend no --cpu t.py --lr 1",
    ),
    "accelerate with a person's FSDP": (
        "accelerate",
        2,
        TWO,
        {**CONFIG, "accelerate_type": "FSDP"},
        "accelerate launch --num_processes 2 --num_machines 1 --main_process_port 0"
        " --gpu_ids all t.py --lr 1",
    ),
    "accelerate with a person's precision": (
        "accelerate",
        2,
        TWO,
        {**CONFIG, "accelerate_type": "NO"},
        "accelerate launch --num_processes 2 --num_machines 1 --main_process_port 0"
        " --gpu_ids all --multi_gpu t.py --lr 1",
    ),
    "deepspeed on all its GPUs": (
        "deepspeed",
        2,
        TWO,
        {"port": 20123},
        "deepspeed --master_port 20123 t.py --lr 1",
    ),
    "deepspeed on GPUs to come": (
        "deepspeed",
        2,
        QUEUED,
        {},
        "deepspeed --master_port 29500 t.py --lr 1",
    ),
    "deepspeed on some": (
        "deepspeed",
        1,
        TWO,
        {},
        "deepspeed --master_port 29500 --include localhost:2 t.py --lr 1",
    ),
    "deepspeed on CPUs": (
        "deepspeed",
        2,
        CPU,
        {},
        "env DS_ACCELERATOR=cpu deepspeed --master_port 29500 --num_gpus 2 t.py --lr 1",
    ),
    "horovod": (
        "horovod",
        2,
        FOUR,
        {},
        "horovodrun -np 2 -H localhost:2 --gloo /v/python -u t.py --lr 1",
    ),
    "horovod with an mpirun": (
        "horovod",
        2,
        CPU,
        {"has_mpirun": True},
        "horovodrun -np 2 -H localhost:2 /v/python -u t.py --lr 1",
    ),
    "mpi": (
        "mpi",
        4,
        FOUR,
        {},
        "mpirun -np 4 --oversubscribe --bind-to none /v/python -u t.py --lr 1",
    ),
    "mpi as root": (
        "mpi",
        2,
        CPU,
        {"root": True},
        "mpirun -np 2 --allow-run-as-root --oversubscribe --bind-to none /v/python -u t.py --lr 1",
    ),
    "mpi that says nothing of where ranks meet": (
        "mpi",
        2,
        CPU,
        {"port": 20123, "unset": ("MASTER_ADDR", "MASTER_PORT")},
        "env MASTER_ADDR=127.0.0.1 MASTER_PORT=20123 mpirun -np 2 --oversubscribe --bind-to none"
        " /v/python -u t.py --lr 1",
    ),
    "mpi where the shell has an address": (
        "mpi",
        2,
        CPU,
        {"port": 20123, "unset": ("MASTER_PORT",)},
        "env MASTER_PORT=20123 mpirun -np 2 --oversubscribe --bind-to none "
        "/v/python -u t.py --lr 1",
    ),
    "another mpi": (
        "mpi",
        2,
        CPU,
        {"root": True, "open_mpi": False},
        "mpirun -np 2 /v/python -u t.py --lr 1",
    ),
    "none": ("none", 1, FOUR, {}, "/v/python -u t.py --lr 1"),
}


def wanted(nproc: int, target: str = "t.py", **more: object) -> Wanted:
    return Wanted(tuple(target.split()), ("--lr", "1"), nproc, **more)


@pytest.mark.parametrize("case", COMMANDS.values(), ids=list(COMMANDS))
def test_the_exact_command(case):
    launcher, nproc, devices, tools, command = case
    made = recipe(launcher, wanted(nproc, **devices), Tools("/v/python", **tools))
    assert shlex.join(made.argv) == command
    assert command_name(made.argv) == "t"
    known = {"mpi": "mpirun", "none": "python"}.get(launcher, launcher)
    assert launcher_name(made.argv) == known, "a job must tell who starts its ranks"
    assert bool(made.notes) == ("accelerate_config" in tools)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_module(launcher):
    one = 1 if launcher == "none" else 2
    made = recipe(launcher, wanted(one, "-m pkg.train", **CPU), Tools("/v/python"))
    at = made.argv.index("pkg.train")
    assert made.argv[at - 1] == ("--module" if launcher == "deepspeed" else "-m")
    assert made.argv[at + 1 :] == ("--lr", "1")
    assert set(PROGRAMS) == set(LAUNCHERS)


REFUSED = {
    "several of none": ("none", 2, CPU, ["starts one process", "remove --nproc"]),
    "more than deepspeed's GPUs": ("deepspeed", 3, TWO, ["3 were requested", "GPUs 2, 5"]),
    "some of GPUs to come": ("deepspeed", 1, QUEUED, ["waiting for", "--gpus auto:1"]),
    "GPUs by UUID": ("deepspeed", 2, {**TWO, "by_uuid": True}, ["only GPU indices"]),
    "a MIG instance": (
        "deepspeed",
        1,
        {"devices": [Device(index=0, uuid="MIG-7")], "device_count": 1},
        ["only GPU indices"],
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=list(REFUSED))
def test_what_a_launcher_cannot_do(case):
    launcher, nproc, devices, words = case
    with pytest.raises(UsageError) as refused:
        recipe(launcher, wanted(nproc, **devices), Tools("/v/python"))
    for word in words:
        assert word in str(refused.value)
