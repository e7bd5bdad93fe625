"""What the documents promise about the program, held against the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ddptop.cli import SECTIONS, cli
from tests.support.builders import put_job
from tests.support.programs import captured
from tools import strings

ROOT = Path(__file__).parents[3]
CHINESE = ROOT / "README.zh-CN.md"
PAGES = [
    ROOT / "README.md",
    CHINESE,
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINK = re.compile(r"\]\(([^)#]+)(#[^)]+)?\)")


def test_the_reference_is_up_to_date() -> None:
    # in its own process: click keeps the help option of a command that a test called by itself
    check = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    subprocess.run(check, cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = (page.parent / target).resolve()
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
            assert anchor[1:] in slugs, f"{page.name} links to {target}{anchor}"


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    assert "make demo" in text
    assert "make test" in text


def test_the_chinese_readme_has_the_same_sections_commands_and_links() -> None:
    english, chinese = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", CHINESE.name)
    )

    def outline(text: str) -> list[object]:
        blocks = "".join(re.findall(r"^```$(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        commands = [line.partition("  #")[0].rstrip() for line in blocks.splitlines()]
        code = sorted(set(re.findall(r"`([^`\n]+)`", text)))
        targets = sorted({one for one, _ in LINK.findall(text)} - {"README.md", CHINESE.name})
        ticks = [row.count("✓") for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
        headings = [one.count("#") for one in re.findall(r"^#+(?= )", text, re.MULTILINE)]
        return [headings, commands, code, targets, ticks]

    for ours, theirs in zip(outline(english), outline(chinese), strict=True):
        assert ours == theirs


def test_help_lists_every_command_once() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(cli.commands)


@pytest.mark.parametrize("verb", sorted(cli.commands))
def test_help_of_each_command_fits_and_has_an_example(verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"], terminal_width=80).output
    assert f"ddptop {verb}" in shown.split("Example:")[1]
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= (52 if verb == "launch" else 24)


def test_strings_are_found_where_a_person_reads_them() -> None:
    module = strings.ROOT / "ddptop" / "cli.py"
    found = [one.text for one in strings.strings_of(module)]
    assert any(text.startswith("Start SCRIPT in the background") for text in found)
    assert "show what would run, then exit" in found
    assert not any("The command line: every verb" in text for text in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    printed = CliRunner().invoke(cli, ["completion", shell]).output
    assert "_DDPTOP_COMPLETE" in printed


def complete(shell_words: str, number: int) -> list[str]:
    environment = os.environ | {
        "COMP_WORDS": shell_words,
        "COMP_CWORD": str(number),
        "_DDPTOP_COMPLETE": "bash_complete",
    }
    done = captured(sys.executable, "-m", "ddptop", env=environment)
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_knows_verbs_options_jobs_and_files(ddptop_home: Path) -> None:
    for name in ("bert-base", "gpt"):
        put_job(name)
    assert complete("ddptop comp", 1) == ["plain,compare", "plain,completion"]
    assert complete("ddptop launch --gp", 2) == ["plain,--gpus"]
    assert complete("ddptop launch --gpus 0 tr", 4) == ["file,tr"]
    assert complete("ddptop stop b", 2) == ["plain,bert-base"]
    assert complete("ddptop compare gpt ", 3) == ["plain,bert-base", "plain,gpt"]
