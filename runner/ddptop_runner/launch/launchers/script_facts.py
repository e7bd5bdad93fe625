"""Reads from a script's source how it trains: who starts its ranks, and its trainer's arguments.

Pure over text (and the files beside it that it imports). A call counts where it can be reached
from what is run: not in a comment or a string, not in a function that nobody names, not behind a
condition that does not hold. What cannot be read is unknown, and never an error.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ddptop_runner.launch.launchers.script_names import PLAIN, What
from ddptop_runner.launch.launchers.script_source import Reader, Source
from ddptop_runner.launch.launchers.script_truth import Conditions, holds
from ddptop_runner.launch.launchers.script_walk import (
    Call,
    Lines,
    Scope,
    Walk,
    expressions,
    lines_with,
)

_SURE, _MAYBE = 2, 1


class Sighting(msgspec.Struct, frozen=True):
    """One telling call that can be reached."""

    what: What
    name: str
    """As it is written: `mp.spawn`."""
    file: str
    """Seen from the script's folder."""
    in_main: bool
    """Whether that is the script itself."""
    line: int
    sure: bool
    """Whether it runs whenever the script does; else a condition decides that nobody knows."""
    told: Mapping[str, object]
    """Its keyword arguments, as far as they are plain: a constant, a list, a name; else None.
    `**` is among them where it is given more than can be seen."""
    several: bool = True
    """Of DataParallel: whether it is given several devices, or all."""

    @property
    def where(self) -> str:
        """`line 12`, or `pkg/run.py, line 12`."""
        return f"line {self.line}" if self.in_main else f"{self.file}, line {self.line}"


class ScriptFacts(msgspec.Struct, frozen=True):
    """What is known of a script."""

    known: bool = False
    """False: it cannot be read, or is not this Python's language."""
    sightings: tuple[Sighting, ...] = ()
    reads: frozenset[str] = frozenset()
    """Variables of a rank that it reads, such as LOCAL_RANK."""
    options: frozenset[str] = frozenset()
    """`--local_rank`, `--local-rank`: where it takes its local rank from the command line."""
    imports: frozenset[str] = frozenset()
    """Top-level packages, but for its own files."""
    is_plain: bool = False
    """Whether all that it imports is known to start no ranks and join none."""

    def first(self, *what: What) -> Sighting | None:
        """The first of these, a sure one before others."""
        found = [seen for seen in self.sightings if seen.what in what]
        return next((seen for seen in found if seen.sure), found[0] if found else None)

    @property
    def takes_ranks(self) -> bool:
        """Whether it is written for a launcher: reads its rank, or joins a group by variables."""
        if self.reads & {"RANK", "LOCAL_RANK", "WORLD_SIZE"}:
            return True
        init = [seen for seen in self.sightings if seen.what == "init"]
        return any("rank" not in seen.told for seen in init)


UNKNOWN = ScriptFacts()


def script_facts(
    path: Path,
    args: Sequence[str] = (),
    *,
    ranks: int = 2,
    devices: int = 0,
    folders: Sequence[Path] = (),
) -> ScriptFacts:
    """Read a script.

    Args:
        path: the script.
        args: its command line, which decides conditions on its switches.
        ranks: how many there would be.
        devices: how many GPUs each of them would see.
        folders: where its own modules lie, beside its own folder.
    """
    collects = gc.isenabled()
    gc.disable()  # trees are many small objects that live: looking for dead ones takes a fifth
    try:
        return _facts(path, args, ranks, devices, folders)
    except RecursionError:  # a program wrote it: nobody nests so deep
        return UNKNOWN
    finally:
        if collects:
            gc.enable()


def _facts(
    path: Path, args: Sequence[str], ranks: int, devices: int, folders: Sequence[Path]
) -> ScriptFacts:
    reader = Reader([path.parent, *folders])
    main = reader.read(path)
    if main is None:
        return UNKNOWN
    conditions = Conditions(tuple(args), ranks, devices)
    walk = Walk(conditions, reader.sources)
    walk.run()
    imports = frozenset().union(*(source.imports for source in reader.sources.values()))
    levels = _levels(walk)
    sightings = [
        _sighting(call, level == _SURE, main)
        for scope in sorted(walk.scopes, key=lambda scope: not scope.source.is_main)
        for call in scope.calls
        if (level := _level(call, levels.get(scope, 0), conditions))
    ]
    ranks_by_hand = _joins(walk)
    return ScriptFacts(
        known=True,
        sightings=tuple(
            seen
            for seen in sightings
            if seen.what != "process" or ranks_by_hand & {str(seen.told.get("target"))}
        ),
        reads=frozenset(walk.reads),
        options=frozenset(walk.options),
        imports=imports,
        is_plain=reader.complete and all(name in PLAIN or name in _standard() for name in imports),
    )


def _standard() -> frozenset[str]:
    import sys

    return frozenset(sys.stdlib_module_names) | {"__future__"}


def _level(call: Call, scope_level: int, conditions: Conditions) -> int:
    held = holds(call.guards, conditions)
    if held is False:
        return 0
    return scope_level if held else min(scope_level, _MAYBE)


def _levels(walk: Walk) -> dict[Scope, int]:
    """How surely each function and class is run; 0 or absent: never."""
    levels = {scope: _SURE for scope in walk.scopes if scope.parent is None}
    if not any(scope.calls for scope in walk.scopes if scope.parent is not None):
        return levels
    by_name: dict[str, list[Scope]] = {}
    children: dict[Scope, list[Scope]] = {}
    leading, mentions = _leading(walk)
    for scope in walk.scopes:
        if scope.parent is not None:
            children.setdefault(scope.parent, []).append(scope)
            if scope.name in leading:
                by_name.setdefault(scope.name, []).append(scope)
    todo = list(levels)
    while todo:
        scope = todo.pop()
        level = levels[scope]
        reached = [
            (found, min(level, how))
            for name, how in _names_in(scope, walk.conditions, by_name, mentions)
            for found in by_name[name]
        ]
        reached += [(found, level) for found in children.get(scope, ()) if found.handed_over]
        for found, how in reached:
            if found is not scope and levels.get(found, 0) < how:
                levels[found] = how
                todo.append(found)
    return levels


def _leading(walk: Walk) -> tuple[set[str], dict[str, Lines]]:
    """Functions and classes through which a telling call may be reached, and where they are named.

    Only lines that hold such a name are looked into: a long script has many others.
    """
    todo = {scope.name for scope in walk.scopes if scope.calls and scope.parent is not None}
    leading: set[str] = set()
    lines: dict[str, set[int]] = {path: set() for path in walk.sources}
    while todo:
        leading |= todo
        names = todo | {
            alias
            for source in walk.sources.values()
            for alias, (_, name) in source.locals.items()
            if name in todo
        }
        pattern = rf"\b(?:{'|'.join(sorted(names))})\b"
        around: set[str] = set()
        for path, source in walk.sources.items():
            new = lines_with(source.text, pattern).lines
            lines[path].update(new)
            around |= {
                scope.name
                for scope in walk.scopes
                if scope.source is source
                and any(scope.lines[0] < line <= scope.lines[1] for line in new)
            }
        todo = around - leading
    return leading, {path: Lines(sorted(found)) for path, found in lines.items()}


def _names_in(
    scope: Scope,
    conditions: Conditions,
    wanted: Mapping[str, object],
    mentions: Mapping[str, Lines] | None = None,
) -> Iterable[tuple[str, int]]:
    """Functions and classes that a scope names, and how surely."""
    found: dict[str, int] = {}
    lines = None if mentions is None else mentions[str(scope.source.path)]
    for item, guards in scope.items:
        if lines is not None and not lines.any(item):
            continue
        for node, above in expressions(item, guards):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
            local = scope.source.locals.get(name) if isinstance(name, str) else None
            if local is not None and local[1] not in (None, "*"):  # imported by another name
                name = local[1]
            if not isinstance(name, str) or name not in wanted or found.get(name) == _SURE:
                continue
            held = holds(above, conditions)
            if held is not False:
                found[name] = max(found.get(name, 0), _SURE if held else _MAYBE)
    return found.items()


def _joins(walk: Walk) -> set[str]:
    """Functions that join a process group, themselves or through what they call."""
    by_name = {scope.name: scope for scope in walk.scopes if scope.parent is not None}
    joins = {
        scope.name for scope in walk.scopes if any(call.what == "init" for call in scope.calls)
    }
    if not any(call.what == "process" for scope in walk.scopes for call in scope.calls):
        return joins
    for _ in range(4):  # calls of calls
        joins |= {
            name
            for name, scope in by_name.items()
            if name not in joins
            and any(used in joins for used, _ in _names_in(scope, walk.conditions, by_name))
        }
    return joins - {""}


def _sighting(call: Call, sure: bool, main: Source) -> Sighting:
    node = call.node
    told: dict[str, object] = {}
    several = True
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            told[keyword.arg or "**"] = _plain(keyword.value)
        positional = node.args[1] if len(node.args) > 1 else None
        given = told.get("device_ids") if positional is None else _plain(positional)
        several = not (isinstance(given, list) and len(given) == 1)
        name = ast.unparse(node.func)
    else:
        name = ast.unparse(node)
    path = call.source.path
    try:
        file = str(path.relative_to(main.path.parent))
    except ValueError:
        file = str(path)
    return Sighting(call.what, name, file, call.source.is_main, call.line, sure, told, several)


def _plain(expr: ast.expr) -> object:
    """A constant, a list of some, the name of what is named or called; else None."""
    if isinstance(expr, ast.Constant):
        return expr.value
    if isinstance(expr, ast.UnaryOp) and isinstance(expr.op, ast.USub):
        inner = _plain(expr.operand)
        return -inner if isinstance(inner, int) else None
    if isinstance(expr, (ast.List, ast.Tuple)):
        return [_plain(item) for item in expr.elts]
    if isinstance(expr, ast.Call):
        method = next((one.value for one in expr.keywords if one.arg == "start_method"), None)
        name = _plain(expr.func)
        return f"{name}({method.value!s})" if isinstance(method, ast.Constant) else name
    if isinstance(expr, ast.Attribute):
        return expr.attr
    return expr.id if isinstance(expr, ast.Name) else None
