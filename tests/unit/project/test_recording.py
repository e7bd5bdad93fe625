"""The recording: what changes is seen in its time, what stays is written once."""

from __future__ import annotations

import importlib.util
import re
import sys
import xml.dom.minidom
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "screenshots" / "recording.py"

WINDOW = """<svg class="rich-terminal" viewBox="0 0 200 100" xmlns="http://www.w3.org/2000/svg">
    <style>
    .terminal-{id}-matrix {{ font-size: 20px; }}
    {rules}
    </style>
    <defs><clipPath id="terminal-{id}-clip-terminal"><rect x="0" y="0" width="9" height="9" />
    </clipPath>
    <clipPath id="terminal-{id}-line-0">
    <rect x="0" y="1.5" width="1464" height="24.65"/>
            </clipPath></defs>
    <rect fill="#292929" x="1" y="1" width="198" height="98" rx="8"/>
    <g transform="translate(9, 41)" clip-path="url(#terminal-{id}-clip-terminal)">
    {grounds}
    <g class="terminal-{id}-matrix">
    {texts}
    </g>
    </g>
</svg>
"""


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recording", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["recording"] = module
    spec.loader.exec_module(module)
    return module


def picture(number: int, *texts: tuple[str, str], ground: str = "#111111") -> str:
    """A picture as Textual exports it: texts with their colors, each under its own class."""
    rules = "\n".join(
        f".terminal-{number}-r{place} {{ fill: {color} }}" for place, (_, color) in enumerate(texts)
    )
    lines = "".join(
        f'<text class="terminal-{number}-r{place}" x="0" y="{20 * place}" textLength="9"'
        f' clip-path="url(#terminal-{number}-line-0)">{text}</text>'
        for place, (text, _) in enumerate(texts)
    )
    rect = (
        f'<rect fill="{ground}" x="0" y="1.5" width="9" height="9" shape-rendering="crispEdges"/>'
    )
    return WINDOW.format(id=number, rules=rules, grounds=rect, texts=lines)


def seen(svg: str, text: str) -> str | None:
    """The rule of when a text is seen; None where it always is."""
    found = re.search(rf'<text class="(f\d+ )?s\d+"[^>]*>{text}</text>', svg)
    assert found is not None, text
    if found[1] is None:
        return None
    rule = re.search(rf"@keyframes {found[1].strip()} {{ (.*) }}$", svg, re.MULTILINE)
    assert rule is not None
    return rule[1]


def test_what_changes_is_seen_in_its_time(recording: ModuleType) -> None:
    frames = [
        recording.Frame(picture(1, ("step", "#aaa"), ("one", "#bbb")), 1.0),
        recording.Frame(picture(22, ("two", "#bbb"), ("rest", "#ccc"), ("step", "#aaa")), 3.0),
    ]
    frames[1] = recording.Frame(frames[1].svg.replace('y="40"', 'y="0"'), 3.0)
    svg = recording.animate(frames)
    xml.dom.minidom.parseString(svg)
    assert svg.count(">step</text>") == 1
    assert seen(svg, "step") is None
    assert seen(svg, "one") == "0.000% { visibility: visible } 25.000% { visibility: hidden }"
    assert seen(svg, "two") == "0.000% { visibility: hidden } 25.000% { visibility: visible }"
    assert "4s step-end infinite" in svg
    assert not re.search(r"terminal-\d", svg), "no name of a single picture is left"
    for color in ("#aaa", "#bbb", "#ccc"):
        assert svg.count(f"fill: {color} }}") == 1


def test_backgrounds_are_below_all_texts(recording: ModuleType) -> None:
    svg = recording.animate(
        [
            recording.Frame(picture(1, ("a", "#aaa")), 1.0),
            recording.Frame(picture(2, ("a", "#aaa"), ground="#222222"), 1.0),
        ]
    )
    assert svg.index('class="f1" fill="#222222"') < svg.index(">a</text>")
    assert svg.index('class="f0" fill="#111111"') < svg.index(">a</text>")


def test_nothing_is_no_recording(recording: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least one picture"):
        recording.animate([])
    with pytest.raises(ValueError, match="no terminal"):
        recording.animate([recording.Frame("<svg></svg>", 1.0)])
