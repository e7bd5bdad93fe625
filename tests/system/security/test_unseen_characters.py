"""No character that steers a terminal or cannot be seen reaches one; JSON keeps it escaped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata

from ddptop import output
from tests.support.builders import put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.model.snapshot import Alert
from ddptop_runner.reading.text.parser import LossParser
from ddptop_runner.store.log_clean import sanitize

SEEN = {
    "Cf": "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
}
"""Of format characters those that have a look: signs around numbers."""
HIEROGLYPHS = range(0x13430, 0x13456)
"""They place hieroglyphs, and nothing else."""


def unsafe_characters() -> list[str]:
    return [
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        and char not in "\n\t" + SEEN["Cf"]
        and ord(char) not in HIEROGLYPHS
    ]


def test_what_is_printed_holds_none_of_them(capsys) -> None:
    unsafe = unsafe_characters()
    for char in unsafe:
        output.put(f"a{char}")
        output.info(f"a{char}")
    printed = "".join(capsys.readouterr())
    assert set(printed) <= set("a?\n")
    assert set(sanitize("".join(f"{char}\x1b\\a" for char in unsafe))) <= set("a?\n")


def test_json_holds_them_as_escapes_and_stays_json(capsys) -> None:
    for char in unsafe_characters():
        if unicodedata.category(char) == "Cs":
            continue
        message = f"before {char}2Jafter"
        output.put_json(Alert(id="x", severity="error", message=message, since=utc_now()))
        printed = capsys.readouterr().out
        assert char not in printed.removesuffix("\n")
        assert json.loads(printed)["message"] == message


def test_a_log_cannot_disguise_a_line_on_a_terminal(ddptop_home) -> None:
    folder = put_job("train", {"state": "finished"})
    log = folder.log_file(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("lo\u200ess \u200b1.0 \u202e\x9b2J\x85end\n")
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-m", "ddptop", "logs", "train"], stdout=theirs, check=True)
    os.close(theirs)
    assert os.read(ours, 4096) == b"loss 1.0 end\r\n"
    os.close(ours)


def calls(data: bytes) -> int:
    """How many functions of Python's are entered to parse it."""
    entered = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    parser = LossParser()
    sys.setprofile(count)
    try:
        parser.feed(data)
    finally:
        sys.setprofile(None)
    return entered


def test_backspaces_do_not_make_a_line_dear() -> None:
    plain = calls(b"." * 8000 + b"\n")
    assert calls(b".\x08" * 4000 + b"\n") < plain + 3 * 8_000  # linear, each one a short line
    assert calls(b".......\x08\x08\x08\x08\x08\x08\x08" * 500 + b"\n") < plain + 3 * 7_000
