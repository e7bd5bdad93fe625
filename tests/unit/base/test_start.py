"""Where ddptop's own processes find their modules."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
from tests.support.programs import captured

from ddptop_runner.base import start

HERE = Path(start.__file__).parents[1]
REPOSITORY = HERE.parent.parent
PACKAGES = [str(HERE.parent), str(REPOSITORY)]
TRAPS = sorted(name for name in sys.stdlib_module_names if name not in sys.builtin_module_names)
INSTALLED = ["click", "ddptop", "ddptop_runner", "msgspec", "rich", "textual"]
MISSING = ["attr", "sitecustomize", "usercustomize"]
"""Modules that Python and rich import if they exist."""


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder with a module of each name; each records that it was imported."""
    folder = tmp_path / "traps"
    folder.mkdir()
    marker = tmp_path / "sprung"
    for name in [*TRAPS, *INSTALLED, *MISSING]:
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write('{name} ')\n")
    return folder


def folder_named(traps: Path) -> Path:
    """A folder that the user listed in PYTHONPATH: it may add modules, but must not replace any."""
    named = traps.with_name("named")
    named.mkdir()
    for name in filter(importlib.util.find_spec, [*TRAPS, *INSTALLED]):
        (named / f"{name}.py").symlink_to(traps / f"{name}.py")
    return named


def sprung(traps: Path) -> str:
    marker = traps.with_name("sprung")
    return marker.read_text() if marker.exists() else ""


def test_what_a_person_names_comes_last_and_what_is_relative_not_at_all():
    path = ["", "/mine", "/here/lib", "/lib/python", "/lib/site-packages"]
    given = os.pathsep.join(["/mine/", "", "lib", ".", "/theirs", PACKAGES[0]])
    cwd = str(Path.cwd())
    assert start.searched([*path, cwd, f"{cwd}/lib"], given) == [
        *("/here/lib", "/lib/python", "/lib/site-packages", *PACKAGES, "/mine", "/theirs")
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["supervisor", "/no-such-run", "0"], "no-such-run"),
        (["guardian", "/no-such-run"], "no-such-run"),
        (["ddptop", "--version"], "ddptop"),
        (["ddptop", "ls", "--json"], "schema"),
        (["ddptop.serve.viewer", "--help"], "--columns"),
        (["ddptop_runner.devices.sampler", "--what"], "JSON is malformed"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_no_process_imports_from_the_current_folder_or_instead_of_python(
    words, said, traps, ddptop_home
):
    (traps / "queue.py").write_text("raise SystemExit('the wrong queue')\n")
    named = os.pathsep.join([str(folder_named(traps)), "", "."])
    ended = captured(
        *start.own_command(*words), cwd=traps, env={**os.environ, "PYTHONPATH": named}, timeout=60
    )
    assert sprung(traps) == ""
    assert said in ended.stdout + ended.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path (-P)")
def test_the_command_line_itself_takes_python_first(traps, ddptop_home):
    """All of PYTHONPATH is searched before a program's first line runs, so some cannot be
    prevented."""
    (traps / "queue.py").write_text("raise SystemExit('the wrong queue')\n")
    for taken_before in ("__future__", "encodings", "sitecustomize", "usercustomize", "ddptop"):
        (traps / f"{taken_before}.py").unlink()
    (traps / "ddptop_runner.py").unlink()
    script = traps.with_name("ddptop")  # as pip writes it
    script.write_text("import sys\nfrom ddptop.__main__ import main\nsys.exit(main())\n")
    ended = captured(
        *[sys.executable, str(script), "ls", "--json"],
        cwd=traps,
        env={**os.environ, "PYTHONPATH": os.pathsep},
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert sprung(traps) == ""


def test_nothing_starts_python_in_another_way():
    """Each start of this interpreter uses `own_command`, or is isolated."""
    starts = re.compile(r"\[\s*sys\.executable,\s*\"(-\w)\"")
    found = {}
    for file in [*REPOSITORY.glob("ddptop/**/*.py"), *HERE.glob("**/*.py")]:
        text = file.read_text(encoding="utf-8")
        for line in re.findall(r".*\[\s*sys\.executable.*", text):
            found.setdefault(file.name, []).append(line)
            assert set(starts.findall(line)) & {"-I", "-E"}, f"{file}: {line}"
        assert not re.search(r"\"-m\", \"ddptop", text), file
    assert sorted(found) == ["command.py", "handover.py", "setup_host.py", "sick.py", "start.py"]


def test_its_words_are_found_behind_the_options():
    command = start.own_command("supervisor", "/runs/train", "7")
    assert start.own_words(command) == ["supervisor", "/runs/train", "7"]
    assert start.own_words(["python", "-u", "start.py", "supervisor", "/runs/train"]) == []
    assert start.own_words(["python"]) == []
