"""Commands given in a folder whose name is no UTF-8: one line at most, and never a traceback."""

from __future__ import annotations

import json
import os
import sys

import pytest
from tests.support.programs import captured


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "-d", "--", "true"],
        ["launch", "-d", "--cwd", ".", "--", "true"],
        ["launch", "--dry-run", "--", "true"],
        ["ls", "--json"],
        ["status", "--json"],
        ["logs", "train"],
    ],
)
def test_a_folder_that_is_no_utf8_is_refused_or_of_no_matter(ddptop_home, tmp_path, words) -> None:
    odd = os.fsencode(tmp_path) + b"/w\xff"
    os.mkdir(odd)  # noqa: PTH102 - bytes
    answer = captured(
        sys.executable, "-m", "ddptop", *words, cwd=odd, env=os.environb | {b"ODD\xfe": b"\xfd"}
    )
    assert "Traceback" not in answer.stderr
    if words[0] == "launch":
        assert answer.returncode == 2
        assert "w\\xff' is not valid UTF-8" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1
        assert not (ddptop_home / "runs").exists()
    elif words[0] == "ls":
        assert json.loads(answer.stdout)["jobs"] == []
    else:
        assert answer.returncode in (2, 3)
