"""Warns or asks before starting N ranks of a script whose source shows that this is wrong.

Each case was tested with two ranks and the variables of torch's launcher:

- `mp.spawn`, or a launcher run by the script: twice as many processes, which join one store or, if
  the script names a port, hang on it.
- DataParallel and `MirroredStrategy`: each rank trains independently on all devices.
- `horovod.torch.init`: each rank is rank 0 of 1.
- Lightning 2.6 with `devices=4`: "the product (4 * 1) does not match the world size (2)"; with
  `devices=1` and no strategy, each rank trains independently, without a message; `ddp_spawn` starts
  ranks within ranks and fails on a lost connection; `ddp_notebook` hangs.
"""

from __future__ import annotations

import ast
import os
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.request import LaunchRequest

_SPAWNING = ("ddp_spawn", "ddp_notebook", "ddp_fork")
"""Prefixes of Lightning strategies that start ranks from within the script."""
_OTHER_TRAINERS = frozenset({"tensorflow", "keras", "jax", "mxnet", "horovod", "mpi4py"})
"""Packages of scripts that may not need torch."""


class Remedy(msgspec.Struct, frozen=True):
    """How to launch the script correctly."""

    launcher: str | None
    nproc: int | None = None
    effect: str = ""
    """Such as `runs it as one process`."""


class Advice(msgspec.Struct, frozen=True):
    """A warning or a question."""

    problem: str
    remedy: Remedy | None = None
    asks: bool = False
    """Whether the user must confirm before ranks start."""


class QuestionError(UsageError):
    """The user must confirm this launch, or choose the remedy."""

    def __init__(self, advice: Advice, request: LaunchRequest) -> None:
        self.problem = advice.problem
        self.as_asked = replace(request, as_asked=True)
        """The same request, confirmed."""
        self.remedy: LaunchRequest | None = None
        self.effect = ""
        hint = "pass --nproc N to start N ranks anyway"
        if advice.remedy is not None:
            self.effect = advice.remedy.effect
            self.remedy = replace(_remedied(request, advice.remedy), as_asked=True)
            hint = f"`{typed(self.remedy)}` {self.effect}; {hint}"
        super().__init__(advice.problem, hint)


def read(request: LaunchRequest, cwd: Path, env: Mapping[str, str]) -> Script:
    """Read the facts of a request's script or module."""
    folders = [Path(cwd, entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if request.kind != "module":
        return read_script(cwd / request.target, folders)
    path = module_file(request.target, [cwd, *folders])
    return Script() if path is None else read_script(path, [cwd, *folders])


def notes_on(request: LaunchRequest, script: Script, ranks: int | None, devices: int) -> list[str]:
    """At most one line to print before a script starts.

    Args:
        request: the request.
        script: the facts of its source.
        ranks: how many ranks there will be; None if unknown.
        devices: how many GPUs the job has or will have.

    Raises:
        QuestionError: the user must confirm first. `--nproc` and `--launcher` confirm.
    """
    advice = advise(request, script, ranks, devices)
    if advice is None:
        return []
    confirmed = request.nproc is not None or request.launcher is not None or request.as_asked
    if advice.asks and not confirmed:
        raise QuestionError(advice, request)
    if advice.remedy is None:
        return [advice.problem]
    right = typed(_remedied(request, advice.remedy))
    return [f"{advice.problem}; `{right}` {advice.remedy.effect}"]


def advise(
    request: LaunchRequest, script: Script, ranks: int | None, devices: int
) -> Advice | None:
    """The advice for a launch of `ranks` ranks; None unless something is certainly wrong."""
    if request.launcher == "none":
        return None
    name = f"-m {request.target}" if request.kind == "module" else request.target
    several = "several ranks" if ranks is None else f"{ranks} rank{'s' if ranks > 1 else ''}"
    if not script.takes_ranks and (found := script.of("spawn", "command")):
        problem = f"{name} starts its own ranks: {_call(found[0])}"
        if ranks == 1:
            return Advice(problem, _ONE)
        each = "each rank" if ranks is None else f"each of the {several}"
        return Advice(f"{problem}; {each} would start more", _ONE, asks=True)
    if ranks == 1 and not script.of("lightning"):
        return None
    if len(trainers := script.of("lightning")) == 1:
        return _lightning(name, trainers[0], ranks, several, devices)
    if script.takes_ranks or script.of("init", "parallel", "lightning"):
        return _local_rank(name, script, ranks)
    if found := [call for call in script.of("data_parallel", "mirrored") if call.several]:
        consequence = f"{several} would each train independently"
        consequence += f" on all {devices} GPUs" if devices > 1 else ""
        problem = f"{name} uses its devices from one process: {_call(found[0])}; {consequence}"
        return Advice(problem, _ONE, asks=True)
    if request.launcher != "horovod" and (found := script.of("horovod")):
        problem = f"{name} gets its rank from horovodrun: {_call(found[0])}; without it, {several}"
        remedy = Remedy("horovod", ranks, "starts it with horovodrun")
        return Advice(f"{problem} would each train independently", remedy, asks=True)
    return None


_ONE = Remedy("none", effect="runs it as one process")


def _lightning(
    script: str, call: Call, ranks: int | None, several: str, devices: int
) -> Advice | None:
    strategy = call.arguments.get("strategy")
    if isinstance(strategy, str) and strategy.startswith(_SPAWNING):
        problem = f"{script} starts its own ranks: {_call(call)} uses strategy {strategy}"
        problem += "; under a launcher, it fails or hangs"
        return Advice(problem, _ONE, asks=ranks != 1)
    if ranks is None or not {"**", "num_nodes"}.isdisjoint(call.arguments):
        return None
    wanted = call.arguments.get("devices")
    count = len(wanted) if isinstance(wanted, list) else wanted
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or count == ranks:
        return None
    written = f"{call.name}(devices={wanted!r}) ({call.where})"
    if count == 1 and strategy in (None, "auto"):
        problem = f"{written} uses one device: {several} would each train independently"
        return Advice(problem, _ONE, asks=True)
    problem = f"{written} expects {count} rank{'s' if count > 1 else ''};"
    too_many = 0 < devices < count
    remedy = _ONE if too_many else Remedy(None, count, "starts that many")
    return Advice(f"{problem} Lightning rejects {several}", remedy, asks=True)


def _local_rank(name: str, script: Script, ranks: int | None) -> Advice | None:
    option = script.local_rank_option
    if option is None or "LOCAL_RANK" in script.reads:
        return None
    problem = f"{name} expects {option}, which torchrun no longer passes; torchrun sets"
    problem += " LOCAL_RANK in the environment instead"
    if "deepspeed" in script.imports:
        return Advice(problem, Remedy("deepspeed", ranks, "passes it"))
    return Advice(problem)


def _call(call: Call) -> str:
    return f"{call.name} ({call.where})"


def _remedied(request: LaunchRequest, remedy: Remedy) -> LaunchRequest:
    return replace(request, launcher=remedy.launcher, nproc=remedy.nproc)


def typed(request: LaunchRequest) -> str:
    """A request as a command line, with the options that decide where and how many ranks run."""
    words = ["ddptop", "launch"]
    options = {
        "--gpus": request.gpus,
        "--launcher": request.launcher,
        "--nproc": request.nproc,
        "--name": request.name,
        "--cwd": request.cwd,
        "--python": request.python,
    }
    for option, value in options.items():
        words += [] if value is None else [option, str(value)]
    words += ["-m"] if request.kind == "module" else []
    return shlex.join([*words, request.target, *request.args])


def explain_missing_torch(error: UsageError, request: LaunchRequest, script: Script) -> UsageError:
    """The same error; for a script that trains without torch, one that names the right launch."""
    other = sorted(script.imports & _OTHER_TRAINERS)
    if "torch" in script.imports or not other:
        return error
    right = replace(request, launcher="none", nproc=None)
    return UsageError(
        f"{error.message}, but {request.target} trains with {other[0]}",
        f"`{typed(right)}` runs it without torch's launcher",
    )


def is_live_on_terminals_only(script: Script, python: str) -> bool:
    """Whether progress appears only on a terminal, as with Lightning's rich progress bar.

    In a file, that bar appears once, at the end of the epoch.
    """
    trainers = script.of("lightning")
    if not trainers or trainers[0].arguments.get("enable_progress_bar") is False:
        return False
    packages = Path(python).parent.parent.glob("lib/python3*/site-packages/rich/__init__.py")
    return next(packages, None) is not None


# --- how a script trains: one pass over its imports and the calls of known names ----------------
#
# The script's own modules that it imports are read too. Conditions are not evaluated and calls are
# not followed: a call counts wherever it appears. If a script cannot be read completely, nothing is
# known about it, which is never an error.

MOST_FILES = 32
MOST_BYTES = 192 * 1024
"""In all files together; reading and parsing delay a launch by about 100 ms per 100 KiB."""

What = Literal[
    "spawn", "command", "data_parallel", "mirrored", "horovod", "lightning", "init", "parallel"
]
"""`spawn`: starts ranks itself; `command`: runs another launcher; `mirrored`: uses all devices from
one process; `init`: joins a process group; `parallel`: wraps or trains a model for one."""

_CALLS: dict[What, str] = {
    "spawn": """
        torch.multiprocessing.spawn torch.multiprocessing.spawn.spawn
        torch.multiprocessing.start_processes torch.multiprocessing.spawn.start_processes
        torch.distributed.launcher.elastic_launch torch.distributed.launcher.api.elastic_launch
        torch.distributed.run.main torch.distributed.run.run torch.distributed.launch.main
        accelerate.notebook_launcher accelerate.launchers.notebook_launcher
        accelerate.debug_launcher accelerate.launchers.debug_launcher
        detectron2.engine.launch detectron2.engine.launch.launch
        ray.train.torch.TorchTrainer pyspark.ml.torch.distributor.TorchDistributor
        torch_xla.launch torch_xla.distributed.xla_multiprocessing.spawn
    """,
    "command": """
        os.system os.popen os.execv os.execvp os.execve os.execvpe os.spawnvp
        subprocess.run subprocess.call subprocess.check_call subprocess.check_output
        subprocess.Popen
    """,
    "data_parallel": """
        torch.nn.DataParallel torch.nn.parallel.DataParallel torch.nn.parallel.data_parallel
        torch.nn.parallel.data_parallel.DataParallel
    """,
    "mirrored": """
        tensorflow.distribute.MirroredStrategy tensorflow.compat.v1.distribute.MirroredStrategy
        tensorflow.compat.v2.distribute.MirroredStrategy
        tensorflow.distribute.experimental.CentralStorageStrategy
        tensorflow.distribute.MultiWorkerMirroredStrategy
        tensorflow.distribute.experimental.MultiWorkerMirroredStrategy
    """,
    "horovod": """
        horovod.init horovod.torch.init horovod.tensorflow.init horovod.keras.init
        horovod.tensorflow.keras.init horovod.mxnet.init
    """,
    "lightning": """
        lightning.Trainer lightning.pytorch.Trainer lightning.pytorch.trainer.Trainer
        pytorch_lightning.Trainer pytorch_lightning.trainer.Trainer
        lightning.pytorch.cli.LightningCLI pytorch_lightning.cli.LightningCLI
        pytorch_lightning.utilities.cli.LightningCLI
    """,
    "init": """
        torch.distributed.init_process_group torch.distributed.init_device_mesh
        torch.distributed.distributed_c10d.init_process_group
        torch.distributed.device_mesh.init_device_mesh deepspeed.init_distributed
        deepspeed.comm.init_distributed
    """,
    "parallel": """
        torch.nn.parallel.DistributedDataParallel
        torch.nn.parallel.distributed.DistributedDataParallel
        torch.distributed.fsdp.FullyShardedDataParallel torch.distributed.fsdp.fully_shard
        apex.parallel.DistributedDataParallel deepspeed.initialize
        accelerate.Accelerator accelerate.accelerator.Accelerator
        lightning.Fabric lightning.fabric.Fabric lightning_fabric.Fabric
        transformers.Trainer transformers.Seq2SeqTrainer trl.SFTTrainer trl.DPOTrainer
        trl.GRPOTrainer sentence_transformers.SentenceTransformerTrainer
    """,
}
_MEANS: dict[str, What] = {name: what for what, names in _CALLS.items() for name in names.split()}

_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
_LOCAL_RANK_OPTIONS = frozenset({"--local_rank", "--local-rank"})
_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
"""Words that mean a launcher anywhere in a command line."""
_LAUNCHER_PROGRAMS = frozenset(
    {"accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun"}
)
"""Words that mean a launcher only at the start of a command line."""


class Call(msgspec.Struct, frozen=True):
    """A call of one of the known functions or classes."""

    what: What
    name: str
    """As written in the source: `mp.spawn`."""
    where: str
    """`line 12`, or `pkg/run.py, line 12`."""
    arguments: Mapping[str, object]
    """Keyword arguments; the value is None unless it is a constant, list, or name. Includes `**` if
    others are passed that the source does not show."""
    several: bool = True
    """For DataParallel, whether it gets several devices or all."""


class Script(msgspec.Struct, frozen=True):
    """Facts about a script's source; empty if it cannot be read completely."""

    calls: tuple[Call, ...] = ()
    imports: frozenset[str] = frozenset()
    """Top-level packages, except the script's own modules."""
    reads: frozenset[str] = frozenset()
    """Which of RANK, LOCAL_RANK, and WORLD_SIZE it mentions, other than to set them."""
    sets_rank: bool = False
    """Whether it sets RANK, for ranks that it starts itself."""
    local_rank_option: str | None = None
    """`--local_rank` or `--local-rank`, which torch.distributed.launch used to pass."""

    def of(self, *what: What) -> list[Call]:
        """The calls of these kinds, the script's own first."""
        return [call for call in self.calls if call.what in what]

    @property
    def takes_ranks(self) -> bool:
        """Whether it is written for a launcher: it takes its rank from the environment."""
        by_variables = any("rank" not in call.arguments for call in self.of("init"))
        return bool(self.reads) or (by_variables and not self.sets_rank)


def read_script(path: Path, folders: Sequence[Path] = ()) -> Script:
    """Read the facts of a script and of those of its own modules that it imports.

    Args:
        path: the script.
        folders: where to search for its modules, besides its own folder.
    """
    folders = [path.parent, *folders]
    calls: list[Call] = []
    imports: set[str] = set()
    reads: set[str] = set()
    sets_rank, option = False, None
    files, left_bytes = [path], MOST_BYTES
    for file in files:  # grows during the loop
        text = _text_of(file, left_bytes)
        tree = None if text is None or len(files) > MOST_FILES else _parse(text)
        if text is None or tree is None:
            return Script()
        left_bytes -= len(text)
        where = "" if file == path else f"{_seen_from(path.parent, file)}, "
        names: dict[str, str] = {}
        nodes = list(ast.walk(tree))
        for module, level, alias, full in _imports_of(nodes):
            own = _own_files(file, module, level, full, folders)
            files += [one for one in own if one not in files]
            if not own and not level:
                imports.add(module.partition(".")[0])
                names[alias] = full
        stored = {
            node.slice
            for node in nodes
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        }
        for node in nodes:
            if isinstance(node, ast.Constant) and node.value in _RANK_VARIABLES:
                if node not in stored:
                    reads.add(str(node.value))
                elif node.value == "RANK":
                    sets_rank = True
            elif isinstance(node, ast.Constant) and node.value in _LOCAL_RANK_OPTIONS:
                option = str(node.value)
            elif isinstance(node, ast.Call):
                if (call := _call_of(node, node.func, names, where)) is not None:
                    calls.append(call)
            elif isinstance(node, ast.ClassDef):  # a subclass of Trainer is a Trainer
                found = (_call_of(None, base, names, where) for base in node.bases)
                calls += [call for call in found if call is not None]
    return Script(tuple(calls), frozenset(imports), frozenset(reads), sets_rank, option)


def module_file(module: str, folders: Sequence[Path]) -> Path | None:
    """The file that `python -m MODULE` runs; None if it is in none of these folders."""
    for folder in folders:
        at = folder.joinpath(*module.split("."))
        for path in (at / "__main__.py", at.with_name(f"{at.name}.py")):
            if path.is_file():
                return path
    return None


def _text_of(path: Path, most_bytes: int) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError:
        return None
    return None if len(data) > most_bytes else data.decode("utf-8-sig", errors="replace")


def _parse(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the script's strings
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _seen_from(folder: Path, file: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)


def _imports_of(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int, str, str]]:
    """Yield (module, leading dots, local name, full name) for each imported name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                yield one.name, 0, one.asname or top, one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            for one in node.names:
                yield module, node.level, one.asname or one.name, f"{module}.{one.name}".strip(".")


def _own_files(
    importer: Path, module: str, level: int, full: str, folders: Sequence[Path]
) -> list[Path]:
    """The script's own files that an import runs: the module's, and that of a submodule."""
    if level:
        folders = [importer.parents[level - 1]] if level <= len(importer.parents) else []
    found: list[Path] = []
    for name in {module: None, full: None}:
        places = [folder.joinpath(*name.split(".")) for folder in folders if name]
        paths = (
            path for at in places for path in (at.with_name(f"{at.name}.py"), at / "__init__.py")
        )
        found += filter(None, [next(filter(Path.is_file, paths), None)])
    return found


def _call_of(
    node: ast.Call | None, func: ast.expr, names: Mapping[str, str], where: str
) -> Call | None:
    parts: list[str] = []
    at = func
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    if not isinstance(at, ast.Name) or at.id not in names:
        return None
    what = _MEANS.get(".".join([names[at.id], *reversed(parts)]))
    if what is None or (what == "command" and not (node and _runs_launcher(node))):
        return None
    place = f"{where}line {func.lineno}"
    name = ast.unparse(func)
    if node is None:
        return Call(what, name, place, {"**": None})
    arguments = {one.arg or "**": _plain(one.value) for one in node.keywords}
    devices = _plain(node.args[1]) if len(node.args) > 1 else arguments.get("device_ids")
    several = not (isinstance(devices, list) and len(devices) == 1)
    return Call(what, name, place, arguments, several)


def _plain(expr: ast.expr) -> object:
    """The value of a constant or list, or the name of what is named or called; else None."""
    if isinstance(expr, ast.Constant):
        return expr.value
    if isinstance(expr, (ast.List, ast.Tuple)):
        return [_plain(item) for item in expr.elts]
    if isinstance(expr, ast.Call):
        return _plain(expr.func)
    if isinstance(expr, ast.Attribute):
        return expr.attr
    return expr.id if isinstance(expr, ast.Name) else None


def _runs_launcher(node: ast.Call) -> bool:
    """Whether this call builds a command line that starts another launcher."""
    words = [
        word.rpartition("/")[2]
        for argument in node.args[:2]
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for word in part.value.split()
    ]
    return not _LAUNCHERS.isdisjoint(words) or (words[:1] != [] and words[0] in _LAUNCHER_PROGRAMS)
