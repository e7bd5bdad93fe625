"""Evaluates the conditions of a script as if ddptop started N ranks: true, false, or unknown.

Known are the variables that ranks of torch's launcher have, how many devices there are, and what
the command line gives of switches that are declared as such.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

import msgspec

from ddptop_runner.launch.launchers.script_names import RANK_VARIABLES

_RANK = "a rank"
_SET = "set"
_DEEP = 8
"""Names that stand for names that stand for names: deeper it is a circle."""

_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}
_OF_RANK: dict[tuple[type[ast.cmpop], int], bool] = {
    (ast.Eq, -1): False,
    (ast.NotEq, -1): True,
    (ast.Gt, -1): True,
    (ast.GtE, 0): True,
    (ast.GtE, -1): True,
    (ast.Lt, 0): False,
    (ast.LtE, -1): False,
}
"""What is so of every rank's number."""

Value = int | str | bool | None


class Conditions(msgspec.Struct, eq=False):
    """What is known when a script's `if` is asked."""

    args: tuple[str, ...] = ()
    """Its command line."""
    ranks: int = 2
    """How many there would be."""
    devices: int = 0
    """How many GPUs each rank would see."""
    assigned: dict[str, list[ast.expr]] = {}
    """What names are given, `.name` for an attribute."""
    switches: dict[str, tuple[bool, tuple[str, ...]]] = {}
    """Options without a value, by the name that they get: what they are when given, and how they
    are written."""

    def assign(self, name: str, value: ast.expr) -> None:
        """Remember what a name stands for, at one of its assignments."""
        self.assigned.setdefault(name, []).append(value)

    def truth(self, test: ast.expr, depth: int = _DEEP) -> bool | None:
        """Whether it holds; None when that is not known."""
        if isinstance(test, ast.BoolOp):
            held = [self.truth(value, depth) for value in test.values]
            decides = isinstance(test.op, ast.Or)
            if decides in held:
                return decides
            return None if None in held else not decides
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.truth(test.operand, depth)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._compare(test.left, test.ops[0], test.comparators[0], depth)
        value = self.value(test, depth)
        if value == _SET:
            return True
        return None if value is None or value == _RANK else bool(value)

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, depth: int) -> bool | None:
        if isinstance(op, (ast.In, ast.NotIn)):
            if not _is_environ(right) or not isinstance(left, ast.Constant):
                return None
            return isinstance(op, ast.In) if left.value in RANK_VARIABLES else None
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                return None
            known = self.value(left, depth) is not None
            return isinstance(op, ast.IsNot) if known else None
        one, other = self.value(left, depth), self.value(right, depth)
        if one == _RANK and isinstance(other, int):
            return _OF_RANK.get((type(op), other))
        if isinstance(one, (int, bool)) and isinstance(other, (int, bool)):
            compare = _COMPARE.get(type(op))
            return None if compare is None else compare(one, other)
        return None

    def value(self, expr: ast.expr, depth: int = _DEEP) -> Value:
        """A number, a truth, `a rank`, `set` for any other text of a rank's; None: unknown."""
        if depth <= 0:
            return None
        if isinstance(expr, ast.Constant):
            return expr.value if isinstance(expr.value, (int, bool)) else None
        if isinstance(expr, ast.UnaryOp) and isinstance(expr.op, ast.USub):
            inner = self.value(expr.operand, depth - 1)
            return -inner if isinstance(inner, int) else None
        if isinstance(expr, (ast.Compare, ast.BoolOp)):
            return self.truth(expr, depth - 1)
        if (variable := environment_name(expr)) is not None:
            return self._of_variable(variable)
        if isinstance(expr, ast.Call):
            return self._call(expr, depth)
        if isinstance(expr, ast.Name):
            return self._named(expr.id, depth)
        if isinstance(expr, ast.Attribute):
            if expr.attr in self.switches:
                given, words = self.switches[expr.attr]
                return given if set(words) & set(self.args) else not given
            return self._named(f".{expr.attr}", depth)
        return None

    def _named(self, name: str, depth: int) -> Value:
        """What a name stands for, where all its assignments agree."""
        values = {self.value(expr, depth - 1) for expr in self.assigned.get(name, ())}
        return values.pop() if len(values) == 1 else None

    def _of_variable(self, name: str) -> Value:
        if name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            return self.ranks
        if name in ("RANK", "LOCAL_RANK"):
            return _RANK
        return _SET if name in RANK_VARIABLES else None

    def _call(self, call: ast.Call, depth: int) -> Value:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else None
        if isinstance(call.func, ast.Name):
            name = call.func.id
        if name == "device_count":
            return self.devices
        if name == "is_torchelastic_launched":
            return True
        if name == "is_available" and _is_of_cuda(call.func):
            return self.devices > 0
        if name in ("int", "bool", "min", "max", "str") and len(call.args) == 1:
            return self.value(call.args[0], depth - 1)
        return None


def _is_of_cuda(func: ast.expr) -> bool:
    of = func.value if isinstance(func, ast.Attribute) else None
    return (of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")) == "cuda"


def _is_environ(expr: ast.expr) -> bool:
    if isinstance(expr, ast.Call):  # os.environ.keys()
        return isinstance(expr.func, ast.Attribute) and _is_environ(expr.func.value)
    return (expr.attr if isinstance(expr, ast.Attribute) else getattr(expr, "id", "")) == "environ"


def environment_name(expr: ast.AST) -> str | None:
    """The variable that an expression reads: `os.environ["RANK"]`, `os.getenv("RANK", 0)`."""
    key: ast.AST | None = None
    if isinstance(expr, ast.Subscript) and isinstance(expr.ctx, ast.Load):
        key = expr.slice if _is_environ(expr.value) else None
    elif isinstance(expr, ast.Call) and expr.args:
        func = expr.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        of_environ = isinstance(func, ast.Attribute) and _is_environ(func.value)
        key = expr.args[0] if name == "getenv" or (name == "get" and of_environ) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


Guards = tuple[tuple["ast.expr | None", bool], ...]
"""Conditions above a statement: the test and which way; None: one of which nothing is known."""


def holds(guards: Guards, conditions: Conditions) -> bool | None:
    """Whether a statement under these conditions runs; None when that is not known."""
    sure = True
    for test, way in guards:
        held = None if test is None else conditions.truth(test)
        if held is None:
            sure = False
        elif held is not way:
            return False
    return True if sure else None
