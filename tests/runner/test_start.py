"""Where ddptop's own processes find their modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ddptop_runner import start

FOLDER = str(Path(start.__file__).parent)
PACKAGE_PARENT = str(Path(FOLDER).parent)


def test_a_persons_folders_come_last_and_ddptops_own_stays_where_it_is():
    path = [FOLDER, "/mine", PACKAGE_PARENT, "/lib/python", "/lib/site-packages"]
    given = os.pathsep.join(["/mine/", "", PACKAGE_PARENT])
    assert start.searched(path, given) == [
        *(PACKAGE_PARENT, "/lib/python", "/lib/site-packages", "/mine")
    ]


def test_ddptop_is_found_where_nothing_names_its_folder():
    assert start.searched([FOLDER, "/lib/python"], "") == ["/lib/python", PACKAGE_PARENT]


def test_a_module_of_the_persons_hides_none_of_pythons(tmp_path):
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong queue')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, f"{FOLDER}/start.py", "supervisor", str(tmp_path / "no-job"), "0"]
    ended = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert "the wrong queue" not in ended.stderr
    assert "no-job" in ended.stderr  # it came as far as its folder
