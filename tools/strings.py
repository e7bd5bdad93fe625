"""Print every user-visible string of the program, one per line.

    python tools/strings.py                  file:line, a tab, the string
    python tools/strings.py --sample 300     a random sample (--seed N for another one)
    python tools/strings.py ddptop/tui       only these folders or files

A string is user-visible if it is a constant or f-string with a space between two words and is not a
docstring, SQL, CSS, or code. The docstring of a click command is its help text and is included.
`{...}` stands for a value that an f-string inserts.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "ddptop", ROOT / "runner" / "ddptop_runner")
WORDS = re.compile(r"[A-Za-z]{2,}[,;:.!?)'\"]* +[({'\"]*[A-Za-z{]")
NOT_PROSE = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|ALTER|DROP|BEGIN|WITH|FROM|WHERE)\b"
    r"|\(\?[:<P!=]|\\[sdwb]|^\s*[.#&A-Z][\w-]*( [.#\w-]+)* \{\s|^import |^from \w+ import "
)


@dataclass(frozen=True, order=True)
class Found:
    """A string and its location."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\t{' '.join(self.text.split())}"


def _text(node: ast.expr) -> str | None:
    """Return the text of a constant or f-string, with `{...}` for values; None for other nodes."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = []
        for part in node.values:
            literal = _text(part)
            parts.append("{...}" if literal is None else literal)
        return "".join(parts)
    return None


def _is_command(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        ".command" in ast.unparse(one) or ".group" in ast.unparse(one)
        for one in node.decorator_list
    )


class _Reader(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Found] = []

    def _body(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        for index, statement in enumerate(node.body):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if index == 0 and _is_command(node):
                    self._keep(statement.value)
                continue  # a docstring, or the string below an attribute
            self.visit(statement)
        for decorator in getattr(node, "decorator_list", []):
            self.visit(decorator)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.visit(node.args)

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _body

    def _keep(self, node: ast.expr) -> None:
        text = _text(node)
        if text is not None and WORDS.search(text) and not NOT_PROSE.search(text):
            self.found.append(Found(self.path, node.lineno, text))

    def visit_Constant(self, node: ast.Constant) -> None:
        self._keep(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._keep(node)
        for part in node.values:  # strings inside the expressions
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)  # annotations may be strings


def strings_of(path: Path) -> list[Found]:
    """Return the user-visible strings of one module, in order."""
    reader = _Reader(str(path.relative_to(ROOT)))
    reader.visit(ast.parse(path.read_text(encoding="utf-8")))
    return sorted(reader.found)


def collect(paths: list[Path]) -> Iterator[Found]:
    """Yield the user-visible strings of all modules in `paths`."""
    for root in paths:
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            yield from strings_of(path)


def main() -> int:
    """Print the requested strings to stdout, and their number to stderr."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--sample", type=int, metavar="N", help="print N random strings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = list(collect([one.resolve() for one in options.paths] or list(PACKAGES)))
    total = len(found)
    if options.sample is not None:
        found = sorted(random.Random(options.seed).sample(found, min(options.sample, total)))
    for one in found:
        print(one)
    print(f"{len(found)} of {total} strings", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
