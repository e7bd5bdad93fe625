"""Reads from a command line who starts the ranks, and derives the job's name."""

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
"""Words of a shell's own that stand where a command does."""
_MOST_SHELLS = 3
"""A shell in a shell in a shell: deeper it is no command that a person typed."""


def inner(argv: Sequence[str]) -> tuple[str, ...]:
    """The words from the launcher, the interpreter or the program on, without what wraps them.

    `env A=1 nohup torchrun x.py` → `torchrun x.py`; `bash -c 'A=1 python x.py'` → `python x.py`;
    `bash run.sh` → `run.sh`.
    Words that only wrap and lead to nothing known stay as they are.
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
    """A path or a script; a bare word may be an option's value."""
    return "/" in word or word.endswith((".py", ".sh"))


def _code_of_shell(words: tuple[str, ...]) -> tuple[str, ...]:
    """The last command of `sh -c CODE` that trains, else its last; empty for anything else."""
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
    """Who starts the command's ranks, as its words tell; a `foreign.types.Launcher`.

    `python` is a script that is run as it is, and may still start ranks itself; None is a program
    of which nothing is known.
    """
    words = inner(argv)
    kind = launcher_of(words)
    if kind is None and words and (python_target(words) or words[0].endswith(".py")):
        return "python"
    return kind


def command_name(argv: Sequence[str]) -> str:
    """A job's name: the script inside the command, else its program.

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
