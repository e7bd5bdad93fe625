"""`ddptop report`: where it writes."""

from __future__ import annotations

from tests.support import fake_story


def test_it_writes_markdown_or_a_page(ddptop_home, ddptop_cli, tmp_path):
    fake_story.many_attempts(ddptop_home)
    assert ddptop_cli("report", "gpt-small").stdout.startswith("# gpt-small: ✗ failed\n")
    written = tmp_path / "gpt.html"
    written.write_text("old")
    shown = ddptop_cli("report", "gpt-small", "--html", "-o", str(written))
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")
    assert written.read_text().startswith("<!doctype html>")


def test_what_cannot_be_read_or_written_is_one_line(ddptop_home, bad_input, tmp_path):
    folder = fake_story.many_attempts(ddptop_home)
    assert "missing/a.md" in bad_input(2, "report", "gpt-small", "-o", f"{tmp_path}/missing/a.md")
    folder.history_db.write_bytes(b"garbage" * 1000)
    assert "history.db is not a valid history" in bad_input(1, "report", "gpt-small")
