"""What each field of the launch form means."""

from __future__ import annotations

FIELDS: tuple[tuple[str, str], ...] = (
    (
        "script",
        "The Python file that every rank runs, relative to ddptop's working directory; tab "
        "completes it. To use another launcher or program, put it after --; for example, -- "
        "torchrun train.py.",
    ),
    ("arguments", "Arguments passed to the script, quoted as in a shell."),
    (
        "GPUs",
        "The devices that the job may use. Free devices are preselected; space, enter, or a "
        "click toggles one. If none are selected, the ranks run on CPUs.",
    ),
    (
        "ranks",
        "The number of processes that train together. auto means one per selected GPU; if no "
        "GPU is selected, enter a number. A command starts its own ranks.",
    ),
    (
        "max restarts",
        "How many times all ranks may restart together after a failure; 0 means never.",
    ),
    (
        "name",
        "The job's name on all screens and in all commands; derived from the script if empty.",
    ),
    (
        "options",
        "Other options of ddptop launch, such as --on-nan restart; ddptop launch --help lists all.",
    ),
    (
        "use busy GPUs anyway, wait until they are free",
        "Shown if a selected GPU is busy. A waiting job is queued and starts automatically.",
    ),
    ("$ ddptop launch ...", "The equivalent shell command."),
    ("keys", "tab or enter: next field; ctrl+l: launch; esc: close without launching."),
)
"""Each field with its meaning, in the order of the form."""
