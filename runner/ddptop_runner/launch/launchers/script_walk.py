"""Finds the calls that show how a script trains, with their function and conditions.

Only lines with a telling word are looked into, so that a long script costs little more than its
parsing.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from ddptop_runner.launch.launchers.script_names import (
    HOT_WORDS,
    LAUNCHED_PROGRAMS,
    LAUNCHED_WORDS,
    MEANS,
    OTHER_RANK_VARIABLES,
    RANK_VARIABLES,
    What,
)
from ddptop_runner.launch.launchers.script_source import Source, for_type_checkers
from ddptop_runner.launch.launchers.script_truth import Conditions, Guards, environment_name

_PLAIN_DECORATORS = frozenset(
    """
    staticmethod classmethod property cached_property no_grad inference_mode contextmanager wraps
    lru_cache cache record dataclass abstractmethod override jit compile script
    """.split()  # noqa: SIM905 - a list of one name a line is longer and no clearer
)
"""Decorators that do not hand the function to a program that calls it."""

_PREFIXES = {name[: index + 1] for name in MEANS for index, c in enumerate(name) if c == "."}
"""`torch.`, `torch.nn.` ...: beginnings of names that mean something."""


class Call(msgspec.Struct, eq=False):
    """One telling call, or another use of a telling name."""

    what: What
    node: ast.expr
    source: Source
    guards: Guards

    @property
    def line(self) -> int:
        """Where it stands, counted from 1."""
        return self.node.lineno


class Scope(msgspec.Struct, eq=False):
    """A function, a class or a file: what runs when it is called, or imported."""

    name: str
    source: Source
    parent: Scope | None
    is_class: bool = False
    has_base: bool = False
    """Whether it is a class of which others may call methods by names that they know."""
    lines: tuple[int, int] = (0, 0)
    """The first and the last; of a file both 0."""
    handed_over: bool = False
    """Whether a decorator or a base class calls it under another name."""
    items: list[tuple[ast.AST, Guards]] = []
    """Statements and conditions of its own, in order."""
    calls: list[Call] = []


class Walk(msgspec.Struct, eq=False):
    """What was found in all files of a script."""

    conditions: Conditions
    sources: dict[str, Source]
    scopes: list[Scope] = []
    reads: set[str] = msgspec.field(default_factory=set)
    """Variables of a rank that it reads."""
    options: set[str] = msgspec.field(default_factory=set)
    """Ways in which it is told its local rank on the command line."""

    def run(self) -> None:
        """Look at everything."""
        for source in reversed(list(self.sources.values())):  # what is imported comes first
            top = Scope("", source, None)
            self.scopes.append(top)
            self._block(source.tree.body, top, ())
        hot = Lines([])
        for scope in self.scopes:
            if scope.parent is None:
                hot = self._hot_lines(scope.source)
            for node, guards in scope.items:
                if hot.any(node):
                    self._look(node, guards, scope)

    def _hot_lines(self, source: Source) -> Lines:
        """Lines with a telling word, or with a name that stands for something telling."""
        words = {name for name, full in source.names.items() if full in MEANS}
        for name, (path, _) in source.locals.items():
            if name != "*" and self._resolved([name], source, 4) in MEANS:
                words.add(name)
            elif name == "*" and path in self.sources:
                words |= {one for one, full in self.sources[path].names.items() if full in MEANS}
        names = "".join(rf"|\b{re.escape(word)}\b" for word in sorted(words))
        return lines_with(source.text, HOT_WORDS + names)

    # --- statements ---------------------------------------------------------------------------

    def _block(self, body: list[ast.stmt], scope: Scope, guards: Guards) -> None:
        for stmt in body:
            if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self._define(stmt, scope, guards)
            elif isinstance(stmt, ast.If):
                guards = self._if(stmt, scope, guards)
            elif isinstance(stmt, (ast.Return, ast.Raise)):
                scope.items.append((stmt, guards))
                return
            elif hasattr(stmt, "body") or hasattr(stmt, "cases"):
                self._compound(stmt, scope, guards)
            else:
                scope.items.append((stmt, guards))
                if _exits(stmt):
                    return

    def _define(
        self,
        stmt: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
        scope: Scope,
        guards: Guards,
    ) -> None:
        for decorator in stmt.decorator_list:
            scope.items.append((decorator, guards))
        lines = (stmt.lineno, stmt.end_lineno or stmt.lineno)
        inner = Scope(stmt.name, scope.source, scope, lines=lines)
        if isinstance(stmt, ast.ClassDef):
            inner.is_class = True
            inner.has_base = any(getattr(base, "id", "") != "object" for base in stmt.bases)
            for base in stmt.bases:
                scope.items.append((base, guards))
                full = self.full_name(base, scope.source)
                if full in MEANS:  # a Trainer of the person's own is still one
                    scope.source.names[stmt.name] = full
        else:
            inner.handed_over = any(_hands_over(item) for item in stmt.decorator_list) or (
                scope.is_class and (scope.has_base or stmt.name.startswith("__"))
            )
        self.scopes.append(inner)
        self._block(stmt.body, inner, ())

    def _if(self, stmt: ast.If, scope: Scope, guards: Guards) -> Guards:
        """Both branches; the conditions under which what follows them runs."""
        if for_type_checkers(stmt.test):
            return guards
        if _is_main(stmt.test):
            if scope.source.is_main:
                self._block(stmt.body, scope, guards)
            return guards
        scope.items.append((stmt.test, guards))
        self._block(stmt.body, scope, (*guards, (stmt.test, True)))
        self._block(stmt.orelse, scope, (*guards, (stmt.test, False)))
        if stmt.body and _exits(stmt.body[-1]):
            return (*guards, (stmt.test, False))
        if stmt.orelse and _exits(stmt.orelse[-1]):
            return (*guards, (stmt.test, True))
        return guards

    def _compound(self, stmt: ast.stmt, scope: Scope, guards: Guards) -> None:
        for name in ("test", "iter", "subject", "items"):
            part = getattr(stmt, name, None)
            for expr in part if isinstance(part, list) else [part]:
                if expr is not None:
                    scope.items.append((getattr(expr, "context_expr", expr), guards))
        maybe = (*guards, (None, True))
        self._block(getattr(stmt, "body", []), scope, guards)
        self._block(getattr(stmt, "orelse", []), scope, guards)
        self._block(getattr(stmt, "finalbody", []), scope, guards)
        for part in (*getattr(stmt, "handlers", ()), *getattr(stmt, "cases", ())):
            self._block(part.body, scope, maybe)

    # --- expressions --------------------------------------------------------------------------

    def _look(self, root: ast.AST, guards: Guards, scope: Scope) -> None:
        """Find telling calls below a statement."""
        for node, conditions in expressions(root, guards):
            if isinstance(node, ast.Call):
                self._call(node, conditions, scope)
                self._read(environment_name(node))
            elif isinstance(node, ast.Attribute):
                if node.attr == "COMM_WORLD":
                    what = MEANS.get(self.full_name(node, scope.source) or "")
                    if what == "mpi":
                        scope.calls.append(Call(what, node, scope.source, conditions))
            elif isinstance(node, ast.Subscript):
                self._read(environment_name(node))
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                self._assign(node, scope.source)
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
                self._read(node.left.value)  # "RANK" in os.environ

    def _read(self, variable: object) -> None:
        if variable in RANK_VARIABLES or variable in OTHER_RANK_VARIABLES:
            self.reads.add(str(variable))

    def _call(self, node: ast.Call, guards: Guards, scope: Scope) -> None:
        full = self.full_name(node.func, scope.source)
        what = MEANS.get(full or "")
        if what is not None and (what != "subprocess" or _runs_launcher(node)):
            scope.calls.append(Call(what, node, scope.source, guards))
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            self._option(node)

    def _option(self, node: ast.Call) -> None:
        words = tuple(
            word.value
            for word in node.args
            if isinstance(word, ast.Constant) and isinstance(word.value, str)
        )
        self.options.update(word for word in words if word in ("--local_rank", "--local-rank"))
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        action = getattr(keywords.get("action"), "value", None)
        if action not in ("store_true", "store_false") or not words or "default" in keywords:
            return
        name = next((word for word in words if word.startswith("--")), words[0])
        name = getattr(keywords.get("dest"), "value", name.lstrip("-").replace("-", "_"))
        self.conditions.switches[str(name)] = (action == "store_true", words)

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr, source: Source) -> None:
        value = node.value
        if value is None:
            return
        full = self.full_name(value.func if isinstance(value, ast.Call) else value, source)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute):
                self.conditions.assign(f".{target.attr}", value)
            elif isinstance(target, ast.Name):
                self.conditions.assign(target.id, value)
                if full is not None and full.endswith("multiprocessing.get_context"):
                    source.names[target.id] = full.rpartition(".")[0]
                elif full is not None and not isinstance(value, ast.Call) and _begins(full):
                    source.names[target.id] = full

    def full_name(self, expr: ast.AST, source: Source, depth: int = 4) -> str | None:
        """What a name stands for: `mp.spawn` is `torch.multiprocessing.spawn`; None: unknown."""
        parts: list[str] = []
        while isinstance(expr, ast.Attribute):
            parts.append(expr.attr)
            expr = expr.value
        if isinstance(expr, ast.Call) and not parts:
            return None
        if not isinstance(expr, ast.Name):
            return None
        parts.append(expr.id)
        return self._resolved(parts[::-1], source, depth)

    def _resolved(self, parts: list[str], source: Source, depth: int) -> str | None:
        first, rest = parts[0], parts[1:]
        if first in source.names:
            return ".".join([source.names[first], *rest])
        if first in source.locals and depth:
            path, name = source.locals[first]
            other = self.sources.get(path)
            inner = [name, *rest] if name is not None else rest
            if other is not None and inner:
                if name == "*":
                    return None
                return self._resolved(inner, other, depth - 1)
            return None
        for star in source.stars:
            if (full := ".".join([star, *parts])) in MEANS:
                return full
        other = self.sources.get(source.locals["*"][0]) if "*" in source.locals else None
        return self._resolved(parts, other, depth - 1) if other is not None and depth else None


def expressions(root: ast.AST, guards: Guards) -> Iterator[tuple[ast.AST, Guards]]:
    """Everything below a statement, with the conditions inside expressions: `a if b else c`."""
    stack: list[tuple[ast.AST, Guards]] = [(root, guards)]
    while stack:
        node, above = stack.pop()
        yield node, above
        if isinstance(node, ast.IfExp):
            stack.append((node.test, above))
            stack.append((node.body, (*above, (node.test, True))))
            stack.append((node.orelse, (*above, (node.test, False))))
            continue
        if isinstance(node, ast.BoolOp):
            way = isinstance(node.op, ast.And)
            for value in node.values:
                stack.append((value, above))
                above = (*above, (value, way))
            continue
        for child in node.__dict__.values():
            if child.__class__ is list:
                stack.extend((part, above) for part in child if isinstance(part, ast.AST))
            elif isinstance(child, ast.AST):
                stack.append((child, above))


class Lines(msgspec.Struct, eq=False):
    """Some lines of a file, in order."""

    lines: list[int]

    def any(self, node: ast.AST) -> bool:
        """Whether a telling word stands in any line of it."""
        at = bisect_right(self.lines, node.lineno - 1)  # type: ignore[attr-defined]
        return at < len(self.lines) and self.lines[at] <= node.end_lineno  # type: ignore[attr-defined]


def lines_with(text: str, pattern: str) -> Lines:
    """The lines in which a pattern begins."""
    starts = [0]
    found = text.find("\n")
    while found >= 0:
        starts.append(found + 1)
        found = text.find("\n", found + 1)
    lines = {bisect_right(starts, hit.start()) for hit in re.finditer(pattern, text)}
    return Lines(sorted(lines))


def _begins(full: str) -> bool:
    return full in MEANS or f"{full}." in _PREFIXES


def _is_main(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and isinstance(test.ops[0], ast.Eq)
    )


def _exits(stmt: ast.stmt) -> bool:
    """Whether nothing of the block runs after it."""
    if isinstance(stmt, (ast.Return, ast.Raise)):
        return True
    call = stmt.value if isinstance(stmt, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("exit", "_exit", "quit")


def _hands_over(decorator: ast.expr) -> bool:
    inner = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
    return name not in _PLAIN_DECORATORS


def _runs_launcher(node: ast.Call) -> bool:
    """Whether a command line that is built here begins with another launcher."""
    words = [
        part.value
        for argument in node.args[:2]
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    said = " ".join(words).split()
    if any(word.rpartition("/")[2] in LAUNCHED_WORDS for word in said):
        return True
    return bool(said) and said[0].rpartition("/")[2] in LAUNCHED_PROGRAMS
