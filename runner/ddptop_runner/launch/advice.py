"""Recognizes scripts that start ranks themselves: `mp.spawn`, or a launcher that the script runs.

Under ddptop's own ranks, each of them would start as many processes again, which join one store or,
if the script names a port, hang on it.
"""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

MOST_BYTES = 192 * 1024
"""Reading and parsing delay a launch by about 100 ms per 100 KiB."""

_SPAWNING = frozenset(
    """
    torch.multiprocessing.spawn torch.multiprocessing.spawn.spawn
    torch.multiprocessing.start_processes torch.multiprocessing.spawn.start_processes
    torch.distributed.launcher.elastic_launch torch.distributed.launcher.api.elastic_launch
    torch.distributed.run.main torch.distributed.run.run torch.distributed.launch.main
    accelerate.notebook_launcher accelerate.launchers.notebook_launcher
    """.split()  # noqa: SIM905 - a list of one name a line is longer and no clearer
)
_COMMANDS = frozenset(
    """
    os.system os.popen os.execv os.execvp os.execve os.execvpe
    subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen
    """.split()  # noqa: SIM905
)
_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
"""Words that mean a launcher anywhere in a command line."""
_LAUNCHER_PROGRAMS = frozenset(
    {"accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun"}
)
"""Words that mean a launcher only at the start of a command line."""
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})


def starts_own_ranks(script: Path) -> str | None:
    """The call that starts ranks, such as `mp.spawn (line 12)`; None if there is none.

    Also None if the script reads RANK, LOCAL_RANK, or WORLD_SIZE, because it can then be started by
    a launcher as well, and if it cannot be read or parsed. Conditions are not evaluated: a call
    counts wherever it is. The script's own modules are not read.
    """
    tree = _parsed(script)
    if tree is None:
        return None
    nodes = list(ast.walk(tree))
    stored = {
        node.slice
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    names: dict[str, str] = {}
    calls: list[ast.Call] = []
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value in _RANK_VARIABLES and node not in stored:
            return None
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                names[one.asname or top] = one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(
                {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            )
        elif isinstance(node, ast.Call):
            calls.append(node)
    for call in calls:
        written = ast.unparse(call.func)
        first, dot, rest = written.partition(".")
        full = f"{names.get(first, '')}{dot}{rest}"
        if full in _SPAWNING or (full in _COMMANDS and _runs_launcher(call)):
            return f"{written} (line {call.lineno})"
    return None


def _parsed(script: Path) -> ast.Module | None:
    try:
        with script.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the script's strings
            return ast.parse(data.decode("utf-8-sig", errors="replace"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _runs_launcher(call: ast.Call) -> bool:
    """Whether this call builds a command line that starts another launcher."""
    words = [
        word.rpartition("/")[2]
        for argument in call.args[:2]
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for word in part.value.split()
    ]
    return not _LAUNCHERS.isdisjoint(words) or (words[:1] != [] and words[0] in _LAUNCHER_PROGRAMS)
