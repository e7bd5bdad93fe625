"""`ddptop logs`: the output of a rank or of a command, printed, followed, or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from ddptop.commands import logs
from tests.support.builders import make_snapshot, put_job
from tests.support.terminal import Terminal

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import encode
from ddptop_runner.model.spec import read_spec
from ddptop_runner.store.disk import BLOCK_BYTES, punch

TAGGED = b"starting\n[0]<stdout>:a\n[1]<stdout>:b\n[0]<stdout>:c\n"


@pytest.fixture
def folder(ddptop_home) -> RunFolder:
    """A live job of four ranks."""
    return put_job("job", {"guardian": procs.identify(os.getpid())}, nproc=4)


@pytest.fixture
def command(ddptop_home) -> RunFolder:
    """A command with two ranks and a single log."""
    snapshot = {"world_size": 2, "state": "finished"}
    return put_job("horo", snapshot, kind="command", target="horovodrun", nproc=0)


def write(folder: RunFolder, attempt: int, rank: int, data: bytes) -> None:
    path = folder.log_file(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def end(folder: RunFolder) -> None:
    spec = read_spec(folder)
    ended = make_snapshot(spec, state="finished", ended_at=utc_now())
    write_atomic(folder.node_file(spec.host), encode(ended))


def show(folder, rank=0, *, follow=False, lines=100, attempt=None, is_over=lambda: True) -> int:
    return logs.run(folder, read_spec(folder), rank, follow, lines, attempt, is_over)


def over_after(looks: int, then: Callable[[], None]) -> Callable[[], bool]:
    """`is_over` of a job that does something at the last look before its end."""
    counted = iter(range(looks))

    def is_over() -> bool:
        left = next(counted, looks)
        if left == looks - 1:
            then()
        return left >= looks

    return is_over


# --- lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("follow", [False, True])
def test_lines_are_clean_and_a_bar_is_its_last_state(folder, capfd, follow):
    write(folder, 0, 0, b"old\n\x1b[2Jhello \xff\n 10%\r 20%\r\nlast")
    assert show(folder, follow=follow, lines=3) == 0
    assert capfd.readouterr() == ("hello \ufffd\n 20%\nlast\n", "")


@pytest.mark.parametrize("follow", [False, True])
def test_lines_of_all_ranks_have_their_rank(folder, capfd, monkeypatch, follow):
    write(folder, 0, 0, b"old\na\nc")
    write(folder, 0, 10, b"b\r\n\nno end")
    monkeypatch.setattr(logs.logs, "ranks", lambda *_: [0, 7, 10])  # 7's was removed meanwhile
    assert show(folder, "all", follow=follow, lines=2) == 0
    lines = capfd.readouterr().out.splitlines()
    expected = ["[rank 0] a", "[rank 0] c", "[rank 10] ", "[rank 10] no end"]
    assert (sorted(lines) if follow else lines) == expected, "followed, as they are completed"


def test_the_latest_attempt_is_shown_and_the_others_named(folder, capfd):
    for attempt in range(3):
        write(folder, attempt, 0, b"attempt %d\n" % attempt)
    show(folder)
    earlier = "ddptop: showing attempt 2; --attempt N shows an earlier one (0, 1)\n"
    assert capfd.readouterr() == ("attempt 2\n", earlier)
    show(folder, attempt=1)
    assert capfd.readouterr() == ("attempt 1\n", "")


def test_following_continues_across_attempts_and_names_them(folder, capfd):
    write(folder, 0, 0, b"zero\n")

    def goes_on() -> None:
        write(folder, 0, 0, b"end of zero\n")
        write(folder, 1, 0, b"one\n")

    assert show(folder, follow=True, is_over=over_after(3, goes_on)) == 0
    assert capfd.readouterr().out == "zero\nend of zero\n──── attempt 1 ────\none\n"


@pytest.mark.parametrize("rank", [1, "all"])
def test_following_waits_for_the_first_log(folder, capfd, rank):
    is_over = over_after(3, lambda: write(folder, 0, 1, b"here\n"))
    assert show(folder, rank, follow=True, is_over=is_over) == 0
    assert capfd.readouterr().out.endswith("here\n")


@pytest.mark.parametrize("rank", [None, "all", LAUNCHER])
@pytest.mark.parametrize("follow", [False, True])
def test_all_that_a_command_wrote_is_shown(command, capfd, rank, follow):
    write(command, 0, LAUNCHER, TAGGED)
    assert show(command, rank, follow=follow, lines=3) == 0
    assert capfd.readouterr() == (TAGGED.decode().removeprefix("starting\n"), "")


def test_for_a_rank_of_a_command_the_one_log_is_shown(command, ddptop_cli):
    write(command, 0, LAUNCHER, b"older\n")
    write(command, 1, LAUNCHER, TAGGED)
    shown = ddptop_cli("logs", "horo", "-r", "0", "-n", "2")
    assert (shown.returncode, shown.stdout) == (0, "[1]<stdout>:b\n[0]<stdout>:c\n")
    assert shown.stderr.splitlines() == [
        "ddptop: rank 0 has no separate log; showing all output of the command",
        "ddptop: showing attempt 1; --attempt N shows an earlier one (0)",
    ]


@pytest.mark.parametrize("follow", [False, True])
def test_note_shows_how_much_of_the_log_was_dropped(command, capfd, follow):
    write(command, 0, LAUNCHER, TAGGED * 1000)
    with command.log_file(0, LAUNCHER).open("rb+") as file:
        punch(file.fileno(), 0, 2 * BLOCK_BYTES)
    assert show(command, None, follow=follow, lines=10_000) == 0
    note, *lines = capfd.readouterr().out.splitlines()
    assert note.startswith("──── 8 KiB of earlier output dropped")
    assert 700 < lines.count("[1]<stdout>:b") < 900
    assert show(command, None, follow=follow) == 0
    assert "dropped" not in capfd.readouterr().out


# --- followed on a terminal, and by a reader that leaves -------------------------------------


@pytest.fixture
def terminal(folder) -> Iterator[Terminal]:
    """`logs -f` of a job that has printed a line and part of a bar."""
    write(folder, 0, 0, b"\x1b[2Jstart\n 1%")
    opened = Terminal("logs", "job", "-f", size=(80, 24))
    yield opened
    opened.close()


def test_following_on_a_terminal_shows_the_progress_bar_as_it_is_now(folder, terminal, wait_until):
    wait_until(lambda: terminal.draws(b" 1%"))
    write(folder, 0, 0, b"\r 2% " + b"long" * 100)
    wait_until(lambda: terminal.draws(b" 2% "))
    write(folder, 0, 0, b"\rdone\n")
    end(folder)
    wait_until(terminal.ended)
    terminal.draws(b"")
    first, second, rest = terminal.drawn.split(b"\r\x1b[K")
    assert first == b"start\r\n 1%"
    assert second == (b" 2% " + b"long" * 100)[:78] + "…".encode()
    assert rest == b"done\r\n"


def test_following_ends_when_the_terminal_is_gone(folder, terminal, wait_until):
    wait_until(lambda: terminal.draws(b" 1%"))
    terminal.hang_up()
    wait_until(terminal.ended)


def test_following_ends_when_the_pipe_is_closed_although_nothing_comes(folder):
    write(folder, 0, 0, b"a\n")
    command = [sys.executable, "-m", "ddptop", "logs", "job", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"a\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


# --- what there is no log of -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"rank": 9}, UsageError, "job has no rank 9; ranks: 0-3"),
        ({"attempt": 7}, UsageError, "job has no log for attempt 7; attempts: 0, 2"),
        ({"rank": 3}, DdptopError, "rank 3 of job has no log for attempt 2; ranks with one: 0, 1"),
        ({"rank": 9, "follow": True, "is_over": lambda: False}, UsageError, "ranks: 0-3"),
        ({"rank": 3, "follow": True}, DdptopError, "rank 3 of job has no log for attempt 2"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(folder, arguments, error, words):
    for attempt, rank in ((0, 0), (2, 0), (2, 1)):
        write(folder, attempt, rank, b"x\n")
    with pytest.raises(error) as caught:
        show(folder, **arguments)
    assert words in str(caught.value)
    assert type(caught.value) is error


def test_what_a_command_does_not_have_is_refused(command):
    with pytest.raises(DdptopError, match=r"horo has no log$"):
        show(command, None)
    write(command, 0, LAUNCHER, TAGGED)
    with pytest.raises(UsageError, match="horo has no rank 2") as refused:
        show(command, 2)
    assert "ranks: 0, 1" in str(refused.value)


@pytest.mark.parametrize("rank", [0, "all"])
def test_missing_log_is_reported(folder, rank):
    with pytest.raises(DdptopError, match="job has no log yet; use -f to wait for one"):
        show(folder, rank, is_over=lambda: False)
    with pytest.raises(DdptopError, match=r"job has no log$"):
        show(folder, rank)
