"""`ddptop notify add` without a URL, which it reads from standard input."""

from __future__ import annotations

import io
import sys

import pytest
from ddptop.export.settings import read_urls, urls_file

URL = "https://example.org/hook"


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(
    ("typed", "status", "known"), [(f"{URL}\n", 0, [URL]), ("", 2, []), ("\n", 2, [])]
)
def test_a_terminal_is_asked_for_the_url(
    ddptop_cli, monkeypatch, is_terminal, typed, status, known
):
    stdin = io.StringIO(typed)
    monkeypatch.setattr(stdin, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdin", stdin)
    answer = ddptop_cli("notify", "add")
    *asked, line = answer.stderr.splitlines()
    assert (answer.returncode, answer.stdout) == (status, "")
    assert asked == ["URL:"] * is_terminal
    assert ("URL is malformed" in line) is (status == 2)
    assert read_urls(urls_file()) == known
