"""`ddptop status --watch`: lines drawn in place on a real pty, otherwise one line per change."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import make_snapshot, put_job
from tests.support.terminal import Terminal

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.files import write_atomic
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import Alert, Cause, Progress, RankSample, encode
from ddptop_runner.model.spec import read_spec

WaitUntil = Callable[..., Any]
ALIVE = {"guardian": procs.identify(os.getpid())}
ESC = "\x1b"
BELOW = f"{ESC}[J"
"""The end of each drawing."""


def ranks(number: int = 4, slow: int | None = None) -> list[RankSample]:
    return [
        RankSample(
            rank=rank,
            local_rank=rank,
            host=procs.host_name(),
            pid=1,
            state="running",
            step=41,
            loss=2.5,
            loss_state="ok",
            step_time_s=0.9 if rank == slow else 0.5,
            steps_per_s=2.0,
            cpu_percent=100.0,
            rss_bytes=1 << 30,
        )
        for rank in range(number)
    ]


def change(folder: Any, **changes: Any) -> None:
    """The supervisor's next snapshot."""
    spec = read_spec(folder)
    write_atomic(folder.node_file(spec.host), encode(make_snapshot(spec, **changes)))


def live(**changes: Any) -> dict[str, Any]:
    progress = Progress(step=41, total=100, fraction=0.41, eta_s=75.0, source="api")
    fresh = utc_now() + dt.timedelta(minutes=5)  # on a busy machine, no value is marked as old
    known = {"ranks": ranks(), "world_size": 4, "step": 41, "progress": progress, "ts": fresh}
    return {**ALIVE, **known, **changes}


class Screen(Terminal):
    """`ddptop status` in a terminal, and what is on it."""

    @property
    def sent(self) -> str:
        self.draws(b"")
        return self.drawn.decode("utf-8", "ignore")  # a read may split a character

    def screen(self) -> list[str]:
        """The lines on the screen after drawing, interpreting the few sequences that are used."""
        lines, x, y = [""], 0, 0
        whole = "".join(self.sent.rpartition(BELOW)[:2])
        for token in re.findall(rf"{ESC}\[[\d;]*[A-Za-z]|[\r\n]|[^{ESC}\r\n]+", whole):
            if token == "\n":
                y += 1
                lines += [""] * (y + 1 - len(lines))
            elif token == "\r":
                x = 0
            elif not token.startswith(ESC):
                lines[y] = lines[y][:x].ljust(x) + token + lines[y][x + len(token) :]
                x += len(token)
            elif token[-1] == "A":
                y = max(0, y - int(token[2:-1]))
            elif token[-1] in "KJ":
                lines[y] = lines[y][:x]
                if token[-1] == "J":
                    del lines[y + 1 :]
        return [line for line in lines if line]


@pytest.fixture
def terminal(ddptop_home: Path) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def open_one(
        *arguments: str, columns: int = 100, rows: int = 12, env: dict[str, str] | None = None
    ) -> Screen:
        opened.append(Screen("status", *arguments, size=(columns, rows), env=env))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_lines_are_drawn_in_place_until_the_job_ends(
    terminal: Callable[..., Screen], wait_until: WaitUntil
) -> None:
    folder = put_job("train", live())
    one = terminal("train", "--watch", "--interval", "0.1")
    wait_until(lambda: len(one.screen()) == 4, what="its lines")
    state, progress, loss, devices = one.screen()
    assert state.startswith("train  ● running   2 steps/s  ")
    assert " attempt 0   restarts 0 used, 3 left   world size 4" in state
    assert re.match(r" step 41 / 100  ━+╸?─+  41.0%   ETA 1m 15s   elapsed ", progress)
    assert loss == " loss 2.5000"
    assert devices == " CPU 400%   RSS 4.0 GiB"
    slow = Alert(
        id="straggler", severity="warning", ranks=[2], message="rank 2 is slow", since=utc_now()
    )
    change(folder, **live(ranks=ranks(slow=2), alerts=[slow]))
    wait_until(lambda: "▲ rank 2 is slow" in one.screen()[-1], what="the alert")
    cause = Cause(kind="exception", rank=2, summary="rank 2: ValueError: bad", exit_code=1)
    change(folder, **live(state="failed", cause=cause, ended_at=utc_now(), guardian=None))
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 1, "the exit status that `wait` has"
    lines = one.screen()
    assert lines[0].startswith("train  ✗ failed")
    assert "rank 2: ValueError: bad" in lines[-1]
    assert f"{ESC}[31m" in one.sent and f"{ESC}[32m" in one.sent


def test_ctrl_c_ends_it_well_and_no_color_is_kept_to(
    terminal: Callable[..., Screen], wait_until: WaitUntil
) -> None:
    message = f"a rank is odd {ESC}[2J{ESC}]0;title\x07\nby far"
    alert = Alert(id="odd", severity="warning", message=message, since=utc_now())
    put_job("train", live(alerts=[alert]))
    one = terminal("train", "--watch", columns=40, env={"NO_COLOR": "1"})
    wait_until(lambda: len(one.screen()) >= 4, what="its lines")
    one.type("\x03")
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 0
    assert not re.search(rf"{ESC}\[\d+m", one.sent), "NO_COLOR is set"
    assert f"{ESC}[2J" not in one.sent and f"{ESC}]" not in one.sent
    assert max(map(len, one.screen())) < 40
    assert "a rank is odd" in one.screen()[-1]


def test_all_jobs_have_a_line_each_those_in_need_first(
    terminal: Callable[..., Screen], wait_until: WaitUntil
) -> None:
    for number in range(6):
        put_job(f"well-{number}", live())
    put_job("broken", live(state="failed", ended_at=utc_now(), guardian=None))
    put_job("stuck", live(state="hung"))
    one = terminal("--watch", rows=6)
    wait_until(lambda: len(one.screen()) == 5, what="five lines")
    head, broken, stuck, well, more = one.screen()
    assert head.split()[:2] == ["state", "job"]
    assert broken.split()[:3] == ["✗", "failed", "broken"] and "‖ hung" in stuck
    assert "well-" in well and "41.0%" in well
    assert more == " and 5 more (ddptop ls)"


def test_without_a_terminal_each_change_is_one_line(
    ddptop_home: Path, wait_until: WaitUntil, tmp_path: Path
) -> None:
    folder = put_job("train", live())
    out = tmp_path / "out"
    command = [sys.executable, "-m", "ddptop", "status", "train", "--watch", "--interval", "0.1"]
    with out.open("w") as file:
        one = subprocess.Popen(command, stdout=file, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: "\n" in out.read_text(), what="a line")
        change(folder, **live(state="finished", ended_at=utc_now(), guardian=None))
        assert one.wait(60) == 0
    finally:
        one.kill()
        one.wait()
    first, second = out.read_text().splitlines()
    assert first.startswith("train ● running 2 steps/s") and " | loss 2.5000" in first
    assert second.startswith("train ✓ finished") and ESC not in first + second


def test_json_is_one_object_a_line(ddptop_home: Path) -> None:
    put_job("train", live(state="stopped", ended_at=utc_now(), guardian=None))
    command = [sys.executable, "-m", "ddptop", "status", "--watch", "--json"]
    one = subprocess.run([*command, "train"], capture_output=True, text=True, check=False)
    assert one.returncode == 4
    (line,) = one.stdout.splitlines()
    assert json.loads(line)["job"] == "train" and json.loads(line)["step"] == 41
    with subprocess.Popen(
        [*command, "--interval", "0.1"], stdout=subprocess.PIPE, text=True
    ) as every:
        assert every.stdout is not None
        try:
            lines = [json.loads(every.stdout.readline()) for _ in range(2)]
            every.send_signal(signal.SIGINT)
            assert every.wait(60) == 0
        finally:
            every.kill()
    assert [line["jobs"][0]["job"] for line in lines] == ["train", "train"]


def test_an_interval_without_watch_is_refused(bad_input: Callable[..., str]) -> None:
    assert "add --watch" in bad_input(2, "status", "--interval", "1")


def test_job_removed_meanwhile_is_reported(
    terminal: Callable[..., Screen], wait_until: WaitUntil
) -> None:
    folder = put_job("train", live())
    one = terminal("train", "--watch", "--interval", "0.1")
    wait_until(lambda: len(one.screen()) >= 4, what="its lines")
    folder.spec_file.unlink()
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 3 and "train was removed" in one.sent
