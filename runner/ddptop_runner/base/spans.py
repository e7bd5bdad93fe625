"""Numbers of ranks and devices in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_IN_WORDS = 100_000


def span(numbers: Iterable[int], *, compact: bool = False) -> str:
    """`0-2, 5, 6`: ascending, with runs of three and more drawn together.

    With `compact`, for a table: `0-2,5-6`.
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    comma, shortest = (",", 2) if compact else (", ", 3)
    return comma.join(
        f"{run[0]}-{run[-1]}" if len(run) >= shortest else comma.join(map(str, run)) for run in runs
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1-3`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {span(ranks)}"


def name_gpus(gpus: Sequence[int]) -> str:
    """`GPU 1`, `GPUs 1-3`."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {span(gpus)}"


def ranks_in(words: str) -> list[int]:
    """The numbers of `0-2, 5, 6`, as `span` writes them."""
    found: list[int] = []
    for part in words.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            most = int(last) if last.isdigit() else int(first)
            found += range(int(first), min(most, int(first) + MOST_IN_WORDS) + 1)
    return found
