"""Write the processes of a running training as a tree for the tests.

    python tools/recording/record_tree.py OUT.json ABOUT RANKS_FOLDER PID...

Takes each PID with all below it, as `ProcessTable` sees them. RANKS_FOLDER holds one file per rank,
named by the rank and holding its pid, as the training's own script wrote them. Folders and user
of this machine are replaced.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ddptop_runner.foreign.process_table import ProcessTable
from ddptop_runner.foreign.recognize import Tree
from ddptop_runner.foreign.types import ProcessFacts


def as_json(process: ProcessFacts, places: dict[str, str]) -> dict[str, object]:
    values = asdict(process)
    for name, value in values.items():
        if isinstance(value, frozenset):
            values[name] = sorted(value)
    text = json.dumps({**values, "uid": 1000})
    for here, there in places.items():
        text = text.replace(here, there)
    return {name: value for name, value in json.loads(text).items() if value is not None}


def main() -> None:
    out, about, folder, *roots = sys.argv[1:]
    table = ProcessTable()
    table.scan()
    time.sleep(1.5)
    facts = table.scan()
    tree = Tree({process.pid: process for process in facts}, facts, {})
    processes = []
    for root in map(int, roots):
        processes += [tree.by_pid[root], *tree.descendants(root)]
    places = {sys.prefix: "/home/ada/venv", os.getcwd(): "/home/ada/project"}  # noqa: PTH109
    places[sys.base_prefix] = "/usr"
    ranks = {file.name: int(file.read_text()) for file in sorted(Path(folder).iterdir())}
    lines = [json.dumps(as_json(process, places)) for process in processes]
    Path(out).write_text(
        f'{{"about": {json.dumps(about)},\n "recorded": true,\n "ranks": {json.dumps(ranks)},\n'
        ' "processes": [\n  ' + ",\n  ".join(lines) + "\n]}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
