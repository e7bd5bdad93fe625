"""A working folder full of modules that are named like Python's: nothing of ddptop imports one.

Whoever can write into a folder that somebody works in (a shared project, /tmp, an unpacked archive)
would otherwise run code as that person; and a project's own `queue.py` would break ddptop.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from ddptop.cli import cli
from tests.support.terminal import Terminal

TRAPS = [name for name in sys.stdlib_module_names if name not in sys.builtin_module_names]
OTHERS = ["attr", "click", "ddptop", "ddptop_runner", "msgspec", "rich", "textual", "torch"]
SITE = ["sitecustomize", "usercustomize"]

CONSOLE_SCRIPT = """
import sys
from ddptop.__main__ import main
sys.exit(main())
"""
"""As pip writes it."""

ALL_VERBS = """
import sys
from ddptop.__main__ import main
for words in {verbs}:
    sys.argv[1:] = words
    main()
"""

ON_TERMINALS = {"attach", "launch", "demo", "replay", "watch", "serve"}
VERBS = {
    "checkpoint": ["train", "--timeout", "0.1"],
    "compare": ["train", "train", "--json"],
    "completion": ["bash"],
    "doctor": [],
    "events": ["train"],
    "export": ["train"],
    "gpus": ["--json"],
    "keys": [],
    "logs": ["train"],
    "ls": ["--json"],
    "notify": ["list"],
    "metrics": [],
    "profile": ["train"],
    "ps": [],
    "queue": ["--json"],
    "report": ["train"],
    "stacks": ["train"],
    "status": ["train"],
    "story": ["train"],
    "kill": ["train"],
    "wait": ["train"],
    "restart": ["train"],
    "setup-host": ["nowhere.invalid"],
    "stop": ["train"],
    "rm": ["train"],
}

SCRIPT = """
import colorsys, time
print("colorsys of", colorsys.__file__, flush=True)
time.sleep(3600)
"""


@pytest.mark.tmux
def test_nothing_is_imported_from_the_working_folder(
    tmp_path, ddptop_home, monkeypatch, wait_until
):
    traps, project = tmp_path / "traps", tmp_path / "project"
    traps.mkdir()
    project.mkdir()
    marker = tmp_path / "sprung"
    trap = f"import os\nopen({str(marker)!r}, 'a').write(__name__ + ' ')\n"
    for name in [*TRAPS, *OTHERS, *SITE]:
        (traps / f"{name}.py").write_text(trap)
    (project / "train.py").write_text(SCRIPT)
    (project / "colorsys.py").write_text("")
    console = tmp_path / "bin" / "ddptop"
    console.parent.mkdir()
    console.write_text(CONSOLE_SCRIPT)
    verbs = console.with_name("verbs")
    assert set(cli.commands) == ON_TERMINALS | set(VERBS)
    verbs.write_text(ALL_VERBS.format(verbs=[[verb, *words] for verb, words in VERBS.items()]))
    monkeypatch.chdir(traps)

    launch = ["launch", "--gpus", "none", "--", sys.executable, str(project / "train.py")]
    screen = Terminal(*launch, program=[sys.executable, str(console)])
    log = ddptop_home / "runs" / "train" / "logs" / "attempt-0" / "launcher.log"
    wait_until(lambda: log.exists() and log.read_text(), 120, "the command's line")
    wait_until(lambda: screen.draws(b"elapsed"), what="the job's screen")
    screen.type("q")
    wait_until(screen.ended, what="its end")
    assert screen.process.returncode == 0
    screen.close()
    said = log.read_text()
    ended = subprocess.run(
        [sys.executable, str(verbs)], capture_output=True, text=True, timeout=300, check=False
    )

    sprung = marker.read_text() if marker.exists() else ""
    assert sprung == "", ended.stderr
    assert said == f"colorsys of {project}/colorsys.py\n", "the job's own order is Python's"
    assert '"schema"' in ended.stdout, "the verbs were run"
    assert not (ddptop_home / "runs" / "train").exists(), ended.stderr
