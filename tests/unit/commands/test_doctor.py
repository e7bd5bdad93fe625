"""`ddptop doctor`: text for people, JSON for scripts, and an exit status that summarizes the
checks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from ddptop.commands.doctor import render

from ddptop_runner.launch.doctor import Check

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

CHECKS = [
    Check(id="a", title="Fine", status="ok", detail="as it should be", remedy="never shown"),
    Check(id="b", title="So so", status="warning", detail="word " * 40, remedy="do this"),
    Check(id="c", title="Dark", status="unknown", detail="no answer"),
]


def test_text_names_each_status_in_words() -> None:
    text = render(CHECKS)
    lines = text.splitlines()
    assert lines[0] == "ok          Fine   as it should be"
    assert lines[1].startswith("!  warning  So so  word word")
    assert "            -> do this" in text
    assert "?? unknown  Dark   no answer" in lines
    assert lines[-1] == "Jobs can run; 2 of 3 checks have warnings."
    assert "never shown" not in text and "\x1b" not in text


def test_an_error_counts_in_the_last_line() -> None:
    bad = Check(id="d", title="Bad", status="error", detail="broken", remedy="mend it")
    assert render([bad]).endswith("1 of 1 checks failed; fix these problems to run jobs reliably.")


@pytest.mark.torch
def test_json_and_text_of_this_machine(ddptop_cli: Cli) -> None:
    asked = ddptop_cli("doctor", "--json")
    report = json.loads(asked.stdout)
    assert set(report) == {"schema", "checks"}
    assert {tuple(check) for check in report["checks"]} == {
        ("id", "title", "status", "detail", "remedy")
    }
    errors = [check for check in report["checks"] if check["status"] == "error"]
    assert asked.returncode == (1 if errors else 0)
    text = ddptop_cli("doctor")
    assert text.returncode == asked.returncode
    assert "Python and torch  torch " in text.stdout and "\x1b" not in text.stdout
    assert asked.stderr == text.stderr == ""


def test_a_python_that_does_not_exist_is_an_error_and_no_traceback(ddptop_cli: Cli) -> None:
    asked = ddptop_cli("doctor", "--json", "--python", "/no/such/python")
    assert asked.returncode == 1 and asked.stderr == ""
    [check] = [one for one in json.loads(asked.stdout)["checks"] if one["id"] == "python"]
    assert check["status"] == "error" and check["remedy"]


def test_deleted_working_folder_is_reported(tmp_path, ddptop_home):
    gone = tmp_path / "gone"
    gone.mkdir()
    answer = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$0" -m ddptop doctor', sys.executable],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )
    said = "ddptop: the working directory was deleted; change to another directory and try again\n"
    assert (answer.stdout, answer.stderr) == ("", said)
