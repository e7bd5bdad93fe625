"""`ddptop logs` of a job that runs a command: one log for all its ranks."""

from __future__ import annotations

import subprocess

import pytest
from ddptop.commands import logs
from tests.support.builders import put_job

from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.store.disk import BLOCK_BYTES, punch

TAGGED = b"starting\n[0]<stdout>:a\n[1]<stdout>:b\n[0]<stdout>:c\n"


@pytest.fixture
def folder(ddptop_home) -> RunFolder:
    snapshot = {"world_size": 2, "state": "finished"}
    return put_job("horo", snapshot, kind="command", target="horovodrun", nproc=0)


def write(folder: RunFolder, attempt: int, data: bytes) -> None:
    path = folder.log_file(attempt, LAUNCHER)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("rank", [None, "all", LAUNCHER])
@pytest.mark.parametrize("follow", [False, True])
def test_all_that_a_command_wrote_is_shown_as_it_is(folder, capfdbinary, rank, follow):
    write(folder, 0, TAGGED)
    assert logs.run(folder, rank, follow, 3, None, lambda: True) == 0
    assert capfdbinary.readouterr() == (TAGGED.removeprefix(b"starting\n"), b"")


@pytest.mark.parametrize("rank", [None, "all"])
def test_of_a_progress_bar_a_pipe_gets_the_last_state(folder, capfdbinary, rank):
    bar = b"\r 10%|# |\r 50%|#####|\r100%|##########|\nwindows\r\n\r1%\r2%"
    write(folder, 0, b"start\n" + bar)
    assert logs.run(folder, rank, False, 100, None, lambda: True) == 0
    assert capfdbinary.readouterr().out == b"start\n100%|##########|\nwindows\r\n2%"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_bar_is_the_same_in_pieces_of_any_size(size):
    data = b"a\r\n" + b"".join(b"\r%d%%" % n for n in range(100)) + b"\nb\rc"
    raw = logs._RawLines(with_rank=False)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert b"".join(raw.take(0, one) for one in pieces) + raw.rest() == b"a\r\n99%\nc"


@pytest.mark.parametrize("follow", [False, True])
def test_for_a_rank_the_one_log_is_shown(folder, capfdbinary, follow):
    write(folder, 0, b"older\n")
    write(folder, 1, TAGGED)
    assert logs.run(folder, 0, follow, 2, None, lambda: True) == 0
    out, errors = capfdbinary.readouterr()
    assert out == b"[1]<stdout>:b\n[0]<stdout>:c\n"
    lines = errors.splitlines()
    assert lines[0] == b"ddptop: rank 0 has no separate log; showing all output of the command"
    notes = [] if follow else [b"ddptop: showing attempt 1; --attempt N shows an earlier one (0)"]
    assert lines[1:] == notes


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("rank", [None, 1])
def test_note_shows_how_much_of_the_log_was_dropped(folder, capfdbinary, rank, follow):
    write(folder, 0, TAGGED * 1000)
    with folder.log_file(0, LAUNCHER).open("rb+") as file:
        punch(file.fileno(), 0, 2 * BLOCK_BYTES)
    assert logs.run(folder, rank, follow, 10_000, None, lambda: True) == 0
    note, *lines = capfdbinary.readouterr().out.decode().splitlines()
    assert note.startswith("──── 8 KiB of earlier output dropped")
    assert 700 < lines.count("[1]<stdout>:b") < 900
    assert logs.run(folder, rank, follow, 100, None, lambda: True) == 0
    assert b"dropped" not in capfdbinary.readouterr().out


def test_what_a_command_does_not_have_is_refused(folder):
    with pytest.raises(DdptopError, match=r"horo has no log$"):
        logs.run(folder, None, False, 100, None, lambda: True)
    write(folder, 0, TAGGED)
    with pytest.raises(UsageError, match="horo has no rank 2") as refused:
        logs.run(folder, 2, False, 100, None, lambda: True)
    assert "ranks: 0-1" in str(refused.value)
    with pytest.raises(UsageError, match="no log for attempt 3"):
        logs.run(folder, None, False, 100, 3, lambda: True)


def test_the_log_is_found_where_the_spec_is_damaged(folder, capfdbinary):
    write(folder, 0, TAGGED)
    folder.spec_file.write_text("{")
    assert logs.run(folder, None, False, 100, None, lambda: True) == 0
    assert capfdbinary.readouterr().out == TAGGED


def test_the_command_line_shows_a_commands_log_without_a_rank(folder, ddptop_cli):
    write(folder, 0, TAGGED)
    shown: subprocess.CompletedProcess[str] = ddptop_cli("logs", "horo")
    assert (shown.returncode, shown.stdout) == (0, TAGGED.decode())
    shown = ddptop_cli("logs", "horo", "-r", "1")
    assert (shown.returncode, shown.stdout) == (0, TAGGED.decode())
