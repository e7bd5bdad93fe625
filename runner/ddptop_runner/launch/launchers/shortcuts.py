"""Builds the command with which another launcher starts N ranks of a script.

Pure: what is installed is found by `tools.look` and handed in. A command is complete in itself:
variables that it needs stand in it, before `env`, so that it starts the same way again and a
person can type it. How each was tried stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddptop_runner.base.errors import UsageError
from ddptop_runner.devices.names import names_of
from ddptop_runner.model.spec import Device

LAUNCHERS = ("accelerate", "deepspeed", "horovod", "mpi", "none", "torchrun")
"""What `--launcher` takes; `none` is one process of the job's Python."""

PROGRAMS = {
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
    "horovod": ("horovodrun",),
    "mpi": ("mpirun", "mpiexec"),
    "none": (),
    "torchrun": ("torchrun",),
}
"""Names of each launcher's program, in the order in which they are looked for."""

PACKAGES = {
    "accelerate": "pip install accelerate",
    "deepspeed": "pip install deepspeed",
    "horovod": "pip install horovod",
    "mpi": "apt-get install openmpi-bin",
    "torchrun": "pip install torch",
}

OWN_DISTRIBUTION = frozenset({"", "NO", "NONE"})
"""`distributed_type` of an accelerate configuration that starts one process only."""


class Tools(msgspec.Struct, frozen=True):
    """What a shortcut needs to know of the machine and of the job's environment."""

    python: str
    """The job's interpreter."""
    program: str | None = None
    """The launcher's executable; None for `none`."""
    root: bool = False
    """Whether this user is root, whom Open MPI refuses."""
    open_mpi: bool = True
    """Whether mpirun is Open MPI's, whose options others do not know."""
    has_mpirun: bool = False
    accelerate_config: str | None = None
    """The file that `accelerate config` wrote."""
    accelerate_type: str | None = None
    """Its `distributed_type`."""
    port: int = 29500
    """One that nobody listens on."""
    unset: tuple[str, ...] = ()
    """Which of torch's MASTER_ADDR and MASTER_PORT the job's environment does not have."""


class Wanted(msgspec.Struct, frozen=True):
    """What is to be started."""

    target: tuple[str, ...]
    """`train.py`, or `-m` and a module."""
    args: tuple[str, ...]
    nproc: int
    devices: Sequence[Device] = ()
    """Empty: CPUs, or devices that are not known yet."""
    device_count: int = 0
    """How many the job has or will have."""
    by_uuid: bool = False
    """Whether CUDA_VISIBLE_DEVICES names them by UUID."""


class Recipe(msgspec.Struct, frozen=True):
    """A command, and what to know about it."""

    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


def recipe(launcher: str, wanted: Wanted, tools: Tools) -> Recipe:
    """The command of one launcher.

    Raises:
        UsageError: when that launcher cannot start such ranks.
    """
    return _RECIPES[launcher](wanted, tools)


def _python(wanted: Wanted, tools: Tools) -> tuple[str, ...]:
    return (tools.python, "-u", *wanted.target, *wanted.args)


def _none(wanted: Wanted, tools: Tools) -> Recipe:
    if wanted.nproc != 1:
        raise UsageError(
            f"--launcher none starts one process, but --nproc is {wanted.nproc}",
            "remove --nproc",
        )
    return Recipe(_python(wanted, tools))


def _torchrun(wanted: Wanted, tools: Tools) -> Recipe:
    """`--standalone` takes a free port of its own, so that two jobs do not meet on 29500."""
    words = ("--standalone", "--nproc-per-node", str(wanted.nproc))
    return Recipe((tools.program or "torchrun", *words, *wanted.target, *wanted.args))


def _accelerate(wanted: Wanted, tools: Tools) -> Recipe:
    """Tried with accelerate 1.15.

    `--cpu --num_processes 2` starts one process and says nothing, so on CPUs the way of several
    GPUs is taken, with ACCELERATE_USE_CPU. `--multi_gpu` refuses one process. Port 0 is a free one.
    A configuration of the person's own decides precision, compilation, FSDP and DeepSpeed; its list
    of GPUs would undo the choice of devices, so `--gpu_ids all` is said: all of the job's.
    """
    words = ["--num_processes", str(wanted.nproc), "--num_machines", "1"]
    words += ["--main_process_port", "0"]
    notes: tuple[str, ...] = ()
    own = (tools.accelerate_type or "").upper()
    spreads = tools.accelerate_config is not None and own not in OWN_DISTRIBUTION
    cpu = not wanted.device_count
    env: tuple[str, ...] = ()
    if tools.accelerate_config is None:
        words += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    else:
        words += ["--gpu_ids", "all"]
        notes = (
            f"accelerate uses {tools.accelerate_config} for all settings"
            " except the number of ranks",
        )
    if cpu and wanted.nproc == 1:
        words.append("--cpu")
    elif cpu:
        words.append("--multi_gpu")
        env = ("env", "ACCELERATE_USE_CPU=true")
    elif wanted.nproc > 1 and not spreads:
        words.append("--multi_gpu")
    program = (tools.program or "accelerate", "launch")
    return Recipe((*env, *program, *words, *wanted.target, *wanted.args), notes)


def _deepspeed(wanted: Wanted, tools: Tools) -> Recipe:
    """Tried with deepspeed 0.19 on CPUs; read for GPUs.

    `--num_gpus` makes it forget CUDA_VISIBLE_DEVICES and take GPU 0 and up, so for all of the job's
    GPUs nothing is said, and it takes those; for some of them `--include` names them.
    """
    words = ["--master_port", str(tools.port)]
    env: tuple[str, ...] = ()
    if not wanted.device_count:
        env = ("env", "DS_ACCELERATOR=cpu")
        words += ["--num_gpus", str(wanted.nproc)]
    elif wanted.by_uuid or any(device.is_mig for device in wanted.devices):
        raise UsageError(
            "deepspeed accepts only GPU indices, but this job uses UUIDs",
            "choose whole GPUs or remove --launcher",
        )
    elif wanted.nproc > wanted.device_count:
        raise UsageError(
            f"deepspeed starts one rank per GPU: {wanted.nproc} were requested, but the job has"
            f" {wanted.device_count} ({names_of(wanted.devices)})",
            f"pass --nproc {wanted.device_count}",
        )
    elif wanted.nproc < wanted.device_count:
        if not wanted.devices:
            raise UsageError(
                f"deepspeed cannot use {wanted.nproc} of several GPUs that are not free yet",
                f"pass --gpus auto:{wanted.nproc}",
            )
        some = ",".join(str(device.index) for device in wanted.devices[: wanted.nproc])
        words += ["--include", f"localhost:{some}"]
    target = wanted.target
    if target[0] == "-m":
        target = ("--module", *target[1:])
    return Recipe((*env, tools.program or "deepspeed", *words, *target, *wanted.args))


def _horovod(wanted: Wanted, tools: Tools) -> Recipe:
    """Tried with horovod 0.28.1, built with gloo alone; built with MPI it needs an mpirun."""
    words = ["-np", str(wanted.nproc), "-H", f"localhost:{wanted.nproc}"]
    if not tools.has_mpirun:
        words.append("--gloo")
    return Recipe((tools.program or "horovodrun", *words, *_python(wanted, tools)))


def _mpi(wanted: Wanted, tools: Tools) -> Recipe:
    """Tried with Open MPI 4.1.

    It refuses root, refuses more ranks than cores, and binds each of two ranks to one core, where
    their data loaders would be as well; each is undone. It tells its ranks nothing of where they
    meet, which `torch.distributed` with gloo or NCCL has to know.
    """
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(tools.port)}
    env = [f"{name}={master[name]}" for name in tools.unset]
    words = ["-np", str(wanted.nproc)]
    if tools.open_mpi:
        words += ["--allow-run-as-root"] if tools.root else []
        words += ["--oversubscribe", "--bind-to", "none"]
    command = (tools.program or "mpirun", *words, *_python(wanted, tools))
    return Recipe(("env", *env, *command) if env else command)


_RECIPES = {
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "horovod": _horovod,
    "mpi": _mpi,
    "none": _none,
    "torchrun": _torchrun,
}
