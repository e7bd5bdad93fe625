"""How long a line a pattern may be tried on: some never finish where they do not match.

Python cannot be interrupted in the middle of a match, and nothing is drawn meanwhile. So a pattern
is looked at before it is tried: what can branch at each character again and again is refused, and
each repetition of any character makes the part of a line that is tried shorter.
"""

from __future__ import annotations

import re

import msgspec

REFUSED = 0
_REACH = (4000, 1000, 300)
"""Characters of a line, by how many repetitions of (nearly) any character a pattern has; one more
of certain characters, such as digits, counts as much."""
_MOST_BRANCHES = 8
"""Optional parts, and groups of alternatives."""
_MOST_IN_A_ROW = 2
"""Repetitions with nothing fixed between them."""
_ENDLESS = 10
"""A count from which a repetition is taken as one without end."""

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\((?:\?(?:[:=!]|<[=!]|P<\w+>))?|\)|\||"
    r"[*+?][?+]?|\{\d*,?\d*\}[?+]?|.",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?[aimsux]+\)")
_UNUSUAL = re.compile(r"\(\?(?![:=!]|<[=!]|P<)|\\[1-9]")
"""Conditions, references to what a group found, flags in the middle."""
_WIDE = (".", r"\w", r"\W", r"\S", r"\D")


class _Part(msgspec.Struct):
    """What an atom or a group holds."""

    text: str = ""
    repeats: bool = False
    chooses: bool = False


def reach(text: str) -> int | None:
    """How many characters of a line a valid pattern may be tried on.

    Returns:
        None: whole lines, for nothing in it is repeated; REFUSED: none, it could take for ever.
    """
    if flags := _FLAGS.match(text):
        text = text[flags.end() :]
    if _UNUSUAL.search(text):
        return REFUSED
    groups, last = [_Part()], _Part()
    run: list[str] = []
    """What is repeated right before the next part."""
    wide, narrow, branches = 0, 0, 0
    for token in _TOKEN.findall(text):
        if token[0] == "(":
            groups.append(_Part())
        elif token == ")" and len(groups) > 1:
            last = groups.pop()
            branches += last.chooses
            groups[-1].repeats |= last.repeats
            groups[-1].chooses |= last.chooses
            run = []
        elif token == "|":
            groups[-1].chooses, run = len(groups) > 1, []
        elif (most := _most(token)) is None:
            run = run if last.repeats else []
            last = _Part(token)
        elif most <= 1:
            branches += 1
            groups[-1].repeats = last.repeats = True
        elif last.repeats or last.chooses or last.text in run or len(run) >= _MOST_IN_A_ROW:
            return REFUSED
        else:
            run.append(last.text)
            groups[-1].repeats = last.repeats = True
            is_wide = not last.text or last.text in _WIDE or last.text.startswith("[^")
            wide += is_wide and most >= _ENDLESS
            narrow += not is_wide and most >= _ENDLESS
    if branches > _MOST_BRANCHES or wide >= len(_REACH):
        return REFUSED
    return _REACH[max(wide, min(narrow - 1, 2))] if wide + narrow else None


def _most(token: str) -> float | None:
    """How often a quantifier repeats at most; None for what is no quantifier."""
    if token[0] in "*+":
        return float("inf")
    if token[0] == "?":
        return 1
    if token[0] != "{" or len(token) == 1:
        return None
    _, comma, most = token.rstrip("?+")[1:-1].rpartition(",")
    return float(most) if most else float("inf") if comma else 0
