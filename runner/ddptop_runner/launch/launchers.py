"""Recognizes the launcher and the script in a command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ddptop_runner.foreign.arguments import (
    SHELLS,
    WRAPPERS,
    base_name,
    launched_script,
    launcher_of,
    python_target,
)
from ddptop_runner.model.spec import derive_name

_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_BEFORE_COMMANDS = frozenset({"exec", "do", "then", "else", "if", "while", "until", "!", "{"})
_NO_COMMANDS = frozenset({"done", "fi", "esac", "}", "wait", "exit", "for", "case", "cd", "export"})
"""Shell keywords and builtins that are never the command wanted."""
_MOST_SHELLS = 3
"""How many nested shells to unwrap."""


def inner(argv: Sequence[str]) -> tuple[str, ...]:
    """The command without its wrappers: it starts with the launcher, interpreter, or program.

    `env A=1 nohup torchrun x.py` → `torchrun x.py`; `bash -c 'A=1 python x.py'` → `python x.py`;
    `bash run.sh` → `run.sh`.
    A wrapper around nothing recognizable is returned unchanged.
    """
    words = tuple(argv)
    for _ in range(_MOST_SHELLS):
        words = _without_wrappers(words)
        if not words or base_name(words[0]) not in SHELLS:
            return words
        code = _code_of_shell(words)
        if not code:
            has_script = len(words) > 1 and not words[1].startswith("-")
            return words[1:] if has_script else words
        words = code
    return words


def _without_wrappers(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or base_name(words[0]) not in WRAPPERS:
        return words
    for index in range(1, len(words)):
        rest = words[index:]
        if _VARIABLE.match(rest[0]):
            continue
        if base_name(rest[0]) in SHELLS or launcher_of(rest) or python_target(rest):
            return rest
    for index in range(1, len(words)):
        word = words[index]
        if word[:1] != "-" and not _VARIABLE.match(word) and _looks_like_program(word):
            return words[index:]
    return words


def _looks_like_program(word: str) -> bool:
    """Whether it is a path or a script; a bare word may be an option's value."""
    return "/" in word or word.endswith((".py", ".sh"))


def _code_of_shell(words: tuple[str, ...]) -> tuple[str, ...]:
    """The last training command in `sh -c CODE`, else the last command; empty for other words."""
    if len(words) < 3 or not re.fullmatch(r"-[a-z]*c", words[1]):
        return ()
    try:
        lexer = shlex.shlex(words[2].replace("\n", ";"), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        code = list(lexer)
    except ValueError:
        return ()
    commands: list[tuple[str, ...]] = [()]
    for word in code:
        if word and set(word) <= set(";&|()"):
            commands.append(())
        elif commands[-1] or not (_VARIABLE.match(word) or word in _BEFORE_COMMANDS):
            commands[-1] += (word,)
    found = [words for words in reversed(commands) if words and words[0] not in _NO_COMMANDS]
    trains = (words for words in found if launcher_of(words) or python_target(words))
    return next(trains, found[0] if found else ())


def launcher_name(argv: Sequence[str]) -> str | None:
    """What starts the command's ranks, judging by its words; a `foreign.types.Launcher`.

    `python` is a script without a launcher, which may still start ranks itself; None is an unknown
    program.
    """
    words = inner(argv)
    kind = launcher_of(words)
    if kind is None and words and (python_target(words) or words[0].endswith(".py")):
        return "python"
    return kind


def command_name(argv: Sequence[str]) -> str:
    """A job name from the script inside the command, else from its program.

    `torchrun --nproc-per-node 2 train.py` → `train`; `python -m pkg.train` → `train`;
    `mpirun -np 2 ./train` → `mpirun`.
    """
    words = inner(argv)
    target = python_target(words)
    if launcher_of(words) is not None:
        name = launched_script(words) or launcher_of(words)
    elif target is not None:
        name = target.stem
    else:
        name = base_name(words[0]).rsplit(".", 1)[0] if words else None
    return derive_name((name or "job").replace(".", "-"))
