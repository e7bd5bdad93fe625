"""Decides whether to warn or ask before N ranks of a script start. Pure.

What is said was tried, two ranks each, under the variables of torch's launcher:

- Lightning 2.6 `devices=2, strategy="ddp"` (or none): fine, it takes ranks from the variables. Any
  other number of devices is refused: "the product (4 * 1) does not match the world size (2)". With
  one device, which `devices="auto"` and none at all are on CPUs, and no strategy each rank trains
  alone, without a word.
  `ddp_spawn` starts ranks in ranks and dies of a lost connection; `ddp_notebook` hangs. `Fabric`
  is alike.
- accelerate 1.15 `Accelerator()` and the Trainer of transformers 5: fine on GPUs. On CPUs each rank
  trains alone, unless told `cpu=True`, `use_cpu=True` or ACCELERATE_USE_CPU.
- transformers' Trainer in one process with several GPUs: DataParallel, by its source.
- `deepspeed.initialize`: fine (deepspeed 0.19); its own launcher also passes `--local_rank`.
- `mp.spawn`: twice as many processes, which meet in one store or, where the script names a port,
  hang on it.
- `horovod.torch.init`: each rank is rank 0 of 1. `MirroredStrategy`: each rank trains on all
  devices, alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddptop_runner.launch.launchers.script_facts import ScriptFacts, Sighting

_SPAWNING = ("ddp_spawn", "ddp_notebook", "ddp_fork", "spawn", "fork", "popen_fork")
"""Of Lightning: strategies, or start methods of one, that start ranks from within."""
_TRAINERS = ("tensorflow", "keras", "jax", "mxnet", "paddle")
_OTHER_RANKS = {"OMPI_COMM_WORLD_RANK": "mpi", "PMI_RANK": "mpi", "HOROVOD_RANK": "horovod"}


class Asked(msgspec.Struct, frozen=True):
    """What is about to be started."""

    script: str
    """As it is typed: `train.py`, `-m pkg.train`."""
    ranks: int | None
    """None: nobody said how many."""
    devices: int = 0
    """GPUs that each rank sees."""
    launcher: str | None = None
    """As in `--launcher`."""
    cpu_said: bool = False
    """Whether a variable tells accelerate to train on CPUs."""

    @property
    def many(self) -> bool:
        """Whether there may be several ranks."""
        return self.ranks is None or self.ranks > 1

    @property
    def words(self) -> str:
        """`4 ranks`."""
        if self.ranks is None:
            return "several ranks"
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"


class Remedy(msgspec.Struct, frozen=True):
    """The launch that is right."""

    launcher: str | None
    nproc: int | None = None
    says: str = ""
    """What it does: `runs it as one process`."""


class Advice(msgspec.Struct, frozen=True):
    """What to tell, or to ask."""

    problem: str
    remedy: Remedy | None = None
    asks: bool = False
    """Whether ranks are only started when the person says so."""


def advise(facts: ScriptFacts, asked: Asked) -> Advice | None:
    """What to say before starting; None where nothing speaks against it."""
    if not facts.known:
        return None
    if asked.launcher == "none":
        return _one_process(facts, asked)
    found = (
        _starts_its_own(facts, asked)
        or _lightning(facts, asked)
        or _in_one_process(facts, asked)
        or _told_by_others(facts, asked)
    )
    if found is not None or asked.launcher is not None:
        return found
    return _on_cpus(facts, asked) or _local_rank(facts, asked) or _alone(facts, asked)


_ONE = Remedy("none", says="runs it as one process")


def _starts_its_own(facts: ScriptFacts, asked: Asked) -> Advice | None:
    seen = facts.first("spawn", "process", "subprocess")
    if seen is None or (facts.takes_ranks and not seen.sure):
        return None
    problem = f"{asked.script} starts its own ranks: {_call(seen)}"
    if not asked.many:
        return Advice(problem, _ONE)
    each = "each rank" if asked.ranks is None else f"each of the {asked.words}"
    return Advice(f"{problem}; {each} would start more", _ONE, asks=True)


def _lightning(facts: ScriptFacts, asked: Asked) -> Advice | None:
    seen = facts.first("lightning", "fabric")
    if seen is None:
        return None
    told = seen.told
    strategy = str(told.get("strategy") or "")
    inner = strategy.partition("(")[2].rstrip(")")
    if strategy in _SPAWNING or strategy.startswith(_SPAWNING[:3]) or inner in _SPAWNING:
        problem = f"{asked.script} starts its own ranks:"
        problem += f" {_call(seen)} uses strategy {strategy}; under a launcher it fails or hangs"
        return Advice(problem, _ONE, asks=asked.many)
    if asked.ranks is None or "**" in told or told.get("num_nodes", 1) != 1:
        return None
    devices = _lightning_devices(told, asked.devices)
    if devices is None or devices == asked.ranks:
        return None
    said = f"{seen.name}(devices={told['devices']!r})" if "devices" in told else f"{seen.name}()"
    where = seen.where
    if devices == 1 and strategy in ("", "auto"):
        problem = f"{said} ({where}) uses one device: {asked.words} would each train independently"
        return Advice(problem, _ONE, asks=True)
    problem = f"{said} ({where}) expects {devices} rank{'s' if devices > 1 else ''};"
    problem += f" Lightning rejects {asked.words}"
    if asked.devices and devices > asked.devices:
        return Advice(problem, _ONE, asks=True)
    return Advice(problem, Remedy(None, devices, says="starts that many"), asks=True)


def _lightning_devices(told: Mapping[str, object], gpus: int) -> int | None:
    """How many ranks a Lightning trainer expects; None where the script does not tell."""
    devices = told.get("devices", "auto")
    accelerator = told.get("accelerator", "auto")
    on_gpus = gpus > 0 and accelerator in ("auto", "gpu", "cuda")
    if isinstance(devices, list):
        return len(devices)
    if isinstance(devices, str) and devices.lstrip("-").isdigit():
        devices = int(devices)
    if devices == "auto" or devices == -1:
        if accelerator is None or (accelerator not in ("auto", "cpu") and not on_gpus):
            return None
        return gpus if on_gpus else 1
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        return None
    return devices


def _in_one_process(facts: ScriptFacts, asked: Asked) -> Advice | None:
    """DataParallel, MirroredStrategy and others that use all devices from one process."""
    if not asked.many:
        return None
    alone = f"{asked.words} would each train independently"
    if asked.devices > 1:
        alone += f" on all {asked.devices} GPUs"
    seen = facts.first("data_parallel")
    written_for_ranks = facts.takes_ranks or facts.first("torch_ddp", "init") is not None
    if seen is not None and seen.several and not written_for_ranks:
        problem = f"{asked.script} uses its GPUs from one process: {_call(seen)}; {alone}"
        return Advice(problem, _ONE, asks=True)
    if (seen := facts.first("mirrored", "multi_worker")) is not None:
        problem = f"{asked.script} uses its devices from one process: {_call(seen)}; {alone}"
        return Advice(problem, _ONE, asks=True)
    other = next((name for name in _TRAINERS if name in facts.imports), None)
    if other is not None and not facts.imports & {"torch", "horovod", "lightning", "mpi4py"}:
        problem = f"{asked.script} trains with {other}, which ignores torch's launcher;"
        return Advice(f"{problem} {alone}", _ONE, asks=True)
    return None


def _told_by_others(facts: ScriptFacts, asked: Asked) -> Advice | None:
    """Horovod and MPI: ranks that are told their number by another launcher only."""
    if not asked.many or facts.takes_ranks:
        return None
    seen = facts.first("horovod", "mpi")
    launcher: str | None = None
    how = ""
    if seen is not None:
        launcher, how = seen.what, _call(seen)
    elif not facts.first("torch_ddp", "init", "accelerator", "hf_trainer", "lightning"):
        variable = next((name for name in sorted(_OTHER_RANKS) if name in facts.reads), None)
        if variable is not None:
            launcher, how = _OTHER_RANKS[variable], f"it reads {variable}"
    if launcher is None or launcher == asked.launcher:
        return None
    program = {"horovod": "horovodrun", "mpi": "mpirun"}[launcher]
    problem = f"{asked.script} gets its rank from {program}: {how}; without it,"
    problem += f" {asked.words} would each train independently"
    return Advice(problem, Remedy(launcher, asked.ranks, f"starts it with {program}"), asks=True)


def _on_cpus(facts: ScriptFacts, asked: Asked) -> Advice | None:
    """Accelerate and what builds on it takes ranks on CPUs for one process each, unless told."""
    seen = facts.first("accelerator", "hf_trainer")
    if seen is None or asked.devices or asked.cpu_said or not asked.many:
        return None
    told = seen.told
    if seen.what == "hf_trainer":
        arguments = facts.first("hf_arguments")
        if arguments is None:
            return None
        told = arguments.told
    if any(name in told for name in ("cpu", "use_cpu", "no_cuda", "**")):
        return None
    problem = f"on CPUs, {seen.name} ({seen.where}) treats each rank as a separate training run"
    problem += " unless configured otherwise"
    return Advice(problem, Remedy("accelerate", asked.ranks, "configures it"))


def _local_rank(facts: ScriptFacts, asked: Asked) -> Advice | None:
    if not facts.options or "LOCAL_RANK" in facts.reads or not asked.many:
        return None
    option = min(facts.options)
    problem = f"{asked.script} expects {option}, which torchrun no longer passes; torchrun sets"
    problem += " LOCAL_RANK in the environment instead"
    if facts.first("deepspeed") is not None:
        return Advice(problem, Remedy("deepspeed", asked.ranks, "passes it"))
    return Advice(problem)


def _alone(facts: ScriptFacts, asked: Asked) -> Advice | None:
    """A script that trains by itself, and of which everything is known."""
    if not asked.many or not facts.is_plain or facts.takes_ranks:
        return None
    if facts.first("torch_step") is None or facts.first("init", "torch_ddp", "spawn", "process"):
        return None
    problem = f"{asked.script} does not appear to join a process group: {asked.words} would"
    return Advice(f"{problem} each train independently", _ONE)


def _one_process(facts: ScriptFacts, asked: Asked) -> Advice | None:
    seen = facts.first("hf_trainer")
    if seen is None or asked.devices < 2:
        return None
    problem = f"in one process, {seen.name} ({seen.where}) uses DataParallel on its"
    problem += f" {asked.devices} GPUs"
    return Advice(problem, Remedy(None, None, "starts one rank per GPU"))


def _call(seen: Sighting) -> str:
    return f"{seen.name} ({seen.where})"
