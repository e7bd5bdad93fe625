"""What each field of the launch form means."""

from __future__ import annotations

FIELDS: tuple[tuple[str, str], ...] = (
    (
        "script",
        "The Python file that every rank runs, relative to ddptop's working directory; tab "
        "completes it. Put another launcher or program after --, as in -- torchrun train.py.",
    ),
    ("arguments", "Passed to the script; quote them as in a shell."),
    (
        "GPUs",
        "The devices that the job may use. Free ones are selected; space, enter, or a click "
        "changes that. With none, the ranks run on CPUs.",
    ),
    (
        "ranks",
        "Number of processes that train together. auto means one per selected GPU; without a GPU "
        "you have to give it. A command starts its own ranks.",
    ),
    (
        "max restarts",
        "How often all ranks restart together after one fails; 0 means never.",
    ),
    ("name", "The job's name on all screens and commands; derived from the script if empty."),
    (
        "use busy GPUs anyway, wait until they are free",
        "Shown if a selected GPU is busy. A waiting job is queued and starts by itself.",
    ),
    ("$ ddptop launch ...", "The same as a shell command."),
    ("keys", "tab or enter: next field; ctrl+l: launch; esc: close without launching."),
)
"""Each field with its meaning, in the order of the form."""
