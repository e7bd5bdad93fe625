"""What the words of a command reveal about the length of the training."""

from __future__ import annotations

import pytest
from tests.support.tables import table

from ddptop_runner.reading.progress.from_text import CommandHints, of_command

OPTIONS = table(__file__, "options")


@pytest.mark.parametrize("words", OPTIONS)
def test_options(words: str) -> None:
    assert of_command(words.split()) == CommandHints(**OPTIONS[words])


def test_any_words() -> None:
    assert of_command(["--epochs", "9" * 5000, "=", "--=", "-"]) == CommandHints()
    assert of_command(["--x=1"] * 100_000 + ["--epochs=4"]) == CommandHints()
