"""The syntax trees of a script and of the local modules that it imports.

Bounded: so many files, so many bytes, so many imports deep. What cannot be read or parsed is left
out, and never an error: a newer Python's syntax may be right for the job's interpreter.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

FILE_BYTES = 512 * 1024
"""A longer file was written by a program."""
FOLLOWED_BYTES = 160 * 1024
"""Of all that it imports: parsing takes some 15 ms per 100 KiB, and a launch waits for it."""
MOST_FILES = 24
DEPTH = 2
"""Imports of imports are followed, and no further."""


class Source(msgspec.Struct, eq=False):
    """One file of the script."""

    path: Path
    text: str
    tree: ast.Module
    is_main: bool
    """Whether it is run, and not imported."""
    names: dict[str, str] = {}
    """What its names stand for, as far as it is imported: `mp` is `torch.multiprocessing`."""
    stars: list[str] = []
    """Modules of which it imports every name."""
    imports: set[str] = msgspec.field(default_factory=set)
    """Top-level packages that are not files of the script."""
    locals: dict[str, tuple[str, str | None]] = {}
    """Names of other files' things: to the file's path, and the name there."""


class Reader:
    """Reads a script and what it imports of its own."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """`folders`: where the script's own modules are looked for, as sys.path begins."""
        self.sources: dict[str, Source] = {}
        """By path; the script itself first."""
        self._folders = list(folders)
        self._bytes_left = FOLLOWED_BYTES
        self.complete = True
        """Whether all that the script imports of its own was read."""

    def read(self, path: Path, depth: int = 0) -> Source | None:
        """A file and what it imports; None where it cannot be read, or is not this language."""
        key = str(path)
        if key in self.sources:
            return self.sources[key]
        text = None
        if len(self.sources) < MOST_FILES and depth <= DEPTH:
            text = read_text(path, self._bytes_left if depth else FILE_BYTES)
        tree = None if text is None else parse(text)
        if text is None or tree is None:
            self.complete = False
            return None
        self._bytes_left -= len(text) if depth else 0
        source = self.sources[key] = Source(path, text, tree, is_main=depth == 0)
        for node in imports_of(tree):
            if isinstance(node, ast.Import):
                self._import(source, node, depth)
            else:
                self._import_from(source, node, depth)
        return source

    def _import(self, source: Source, node: ast.Import, depth: int) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            name = alias.asname or top
            found = self._find(source, alias.name, 0)
            if found is not None:
                source.locals[name] = (str(found), None)
                self.read(found, depth + 1)
            elif self._find(source, top, 0) is None:
                source.imports.add(top)
                source.names[name] = alias.name if alias.asname else top

    def _import_from(self, source: Source, node: ast.ImportFrom, depth: int) -> None:
        module = node.module or ""
        found = self._find(source, module, node.level)
        if found is not None:
            self.read(found, depth + 1)
        for alias in node.names:
            name = alias.asname or alias.name
            inside = f"{module}.{alias.name}" if module else alias.name
            part = None if alias.name == "*" else self._find(source, inside, node.level)
            if part is not None:
                source.locals[name] = (str(part), None)
                self.read(part, depth + 1)
            elif found is not None:
                source.locals[name] = (str(found), alias.name)
            elif not node.level:
                source.imports.add(module.partition(".")[0])
                if alias.name == "*":
                    source.stars.append(module)
                else:
                    source.names[name] = inside

    def _find(self, source: Source, module: str, level: int) -> Path | None:
        """The file of a module of the script's own."""
        folders = self._folders
        if level:
            folder = source.path.parent
            for _ in range(level - 1):
                folder = folder.parent
            folders = [folder]
        for base in folders:
            at = base.joinpath(*module.split(".")) if module else base
            candidates = [at.with_name(f"{at.name}.py")] if module else []
            for path in (*candidates, at / "__init__.py"):
                if path.is_file() and path != source.path:
                    return path
        return None


def read_text(path: Path, most_bytes: int) -> str | None:
    """A file's text; None where it cannot be read or is longer."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError:
        return None
    return None if len(data) > most_bytes else data.decode("utf-8-sig", errors="replace")


def parse(text: str) -> ast.Module | None:
    """A file's tree; None for what is not this Python's language."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the person's strings
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imports_of(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import of a file, also those inside functions, but for those of type checkers."""
    stack: list[ast.stmt] = list(reversed(tree.body))
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
            continue
        if isinstance(node, ast.If) and for_type_checkers(node.test):
            continue
        for name in ("orelse", "finalbody", "handlers", "body", "cases"):
            for part in reversed(getattr(node, name, ())):
                if isinstance(part, ast.stmt):
                    stack.append(part)
                else:
                    stack.extend(getattr(part, "body", ()))


def for_type_checkers(test: ast.expr) -> bool:
    """Whether this is `TYPE_CHECKING`, which no running program is."""
    name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", None)
    return name == "TYPE_CHECKING"


def module_file(module: str, folders: Sequence[Path]) -> Path | None:
    """The file that `python -m MODULE` runs, where it lies in one of these folders."""
    parts = module.split(".")
    for folder in folders:
        at = folder.joinpath(*parts)
        for path in (at / "__main__.py", at.with_name(f"{at.name}.py")):
            if path.is_file():
                return path
    return None
