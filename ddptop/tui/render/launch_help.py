"""What each field of the form that launches a job means."""

from __future__ import annotations

FIELDS: tuple[tuple[str, str], ...] = (
    (
        "script",
        "The Python file that every rank runs, as seen from ddptop's folder; tab completes it. "
        "Behind -- any other launcher or program, such as -- torchrun train.py.",
    ),
    ("arguments", "For the script, as in a shell: quotes keep words together."),
    (
        "GPUs",
        "The devices that the job may use. Those that nobody holds are chosen; space, enter or a "
        "click changes that. None: its ranks run on CPUs.",
    ),
    (
        "ranks",
        "How many processes train together. auto is one per chosen GPU; without a GPU it is to be "
        "said. A command starts its ranks itself.",
    ),
    (
        "max restarts",
        "So often all ranks are started again together after one has failed; 0 is never.",
    ),
    ("name", "By which every screen and command knows the job; made from the script if empty."),
    (
        "use busy GPUs anyway, wait until they are free",
        "Asked where somebody holds a chosen GPU. A job that waits is queued: it starts by itself.",
    ),
    ("$ ddptop launch ...", "What the form amounts to, for a shell."),
    ("keys", "tab or enter: the next field; ctrl+l: launch; esc: close without launching."),
)
"""Each with what it means, in the order of the form."""
