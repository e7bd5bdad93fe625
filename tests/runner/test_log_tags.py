"""Which rank printed a line in a shared log: tags of launchers, in chunks of any size."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.store import logs
from ddptop_runner.store.logs import ByteFollower, LogFile, LogFollower, RankFilter, are_tagged

HOROVOD = b"[0]<stdout>:a\n[1]<stderr>:b\nfrom the launcher\n[1]<stdout>:c\n[10]<stdout>:d\n"
MPI = b"[1,0]<stdout>: 10%\r[1,1]<stdout>: 5%\r[1,0]<stdout>: 20%\n[1,1]<stdout>:end\n"
TEE = b"[default0]:a [default1]: is no tag here\n[default1]:b\n"
PLAIN = b"[1] step 3\n[rank 1] epoch [2]\n[00:24<00:00]\n"


def only(rank: int, data: bytes, sizes: random.Random | None = None, **known: bool) -> bytes:
    mine = RankFilter(rank, **known)
    kept = b""
    while data:
        size = len(data) if sizes is None else sizes.choice([1, 2, 3, 9, 40])
        kept += mine.feed(data[:size])
        data = data[size:]
    return kept + mine.finish()


@pytest.mark.parametrize(
    ("data", "rank", "kept"),
    [
        (HOROVOD, 0, b"[0]<stdout>:a\n"),
        (HOROVOD, 1, b"[1]<stderr>:b\n[1]<stdout>:c\n"),
        (HOROVOD, 2, b""),
        (HOROVOD[:-1], 10, b"[10]<stdout>:d"),
        (MPI, 0, b"[1,0]<stdout>: 10%\r[1,0]<stdout>: 20%\n"),
        (MPI, 1, b"[1,1]<stdout>: 5%\r\n[1,1]<stdout>:end\n"),
        (TEE, 0, b"[default0]:a [default1]: is no tag here\n"),
        (TEE, 1, b"[default1]:b\n"),
        (b"\n[0]<stdout>:\n\n", 0, b"[0]<stdout>:\n"),
        (b"[0]<stdout>:x [0", 0, b"[0]<stdout>:x [0"),
    ],
)
def test_one_ranks_lines_are_kept_whatever_the_pieces(data, rank, kept):
    assert only(rank, data, is_tagged=True) == kept
    for seed in range(20):
        assert only(rank, data, random.Random(seed), is_tagged=True) == kept


def test_any_bytes_give_the_same_whatever_the_pieces():
    chance = random.Random(5)
    words = [b"[0]<stdout>:", b"[1,1]<stderr>:", b"[default1]:", b"[", b"1", b"]<std", b"\n", b"\r"]
    for seed in range(500):
        data = b"".join(chance.choices([*words, b"x\xff", b"<stdout>:"], k=chance.randrange(30)))
        whole = only(1, data)
        assert only(1, data, random.Random(seed)) == whole, data
        assert len(whole) <= len(data)


def test_a_log_without_tags_is_kept_whole_until_there_is_one():
    assert only(1, PLAIN) == PLAIN
    assert only(1, PLAIN, random.Random(1)) == PLAIN
    assert only(1, b"starting\n" + HOROVOD) == b"starting\n" + only(1, HOROVOD, is_tagged=True)


@pytest.mark.parametrize("data", [HOROVOD, MPI, TEE])
@pytest.mark.parametrize("before", [b"", b"x" * 300_000 + b"\n"])
def test_tagged_logs_are_detected(tmp_path: Path, data, before):
    log = tmp_path / "log"
    log.write_bytes(before + data)
    assert are_tagged(log)
    log.write_bytes(before + PLAIN)
    assert not are_tagged(log)
    assert not are_tagged(tmp_path / "none")


def test_the_tail_of_one_rank_is_found_among_any_number_of_others(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(logs, "BLOCK_BYTES", 64)
    log = tmp_path / "log"
    lines = [b"[%d]<stdout>:line %d\n" % (n % 50, n) for n in range(1000)]
    log.write_bytes(b"".join(lines))
    with LogFile(log) as file:
        for count in (1, 3, 20):
            found = log.read_bytes()[file.rank_offset(7, count) :]
            assert found.startswith(b"[7]<stdout>:line %d\n" % (1000 - 43 - 50 * (count - 1)))
        assert file.rank_offset(7, 21) == 0
        assert file.rank_offset(7, 0) == log.stat().st_size
        assert file.rank_offset(7, 20, 1000) >= log.stat().st_size - 1000


def test_follower_of_one_rank_starts_with_its_last_lines(tmp_path: Path):
    folder = RunFolder(tmp_path / "job")
    log = folder.log_file(0, LAUNCHER)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(b"[%d]<stdout>:%d\n" % (n % 4, n) for n in range(40)))
    follower = LogFollower(folder, tail=2, tagged_rank=1)
    batches = follower.batches(0)
    assert [line.text for line in next(batches)] == ["[1]<stdout>:33", "[1]<stdout>:37"]
    with log.open("ab") as file:
        file.write(b"[2]<stdout>:no\n[1]<stdout>:yes\n[1]<std")
    assert [line.text for line in next(batches)] == ["[1]<stdout>:yes"]
    batches.close()
    whole = ByteFollower(folder, is_over=lambda: True, tail=0, tagged_rank=1)
    with log.open("ab") as file:
        file.write(b"out>:never ended [1")
    with closing(whole):
        assert whole.poll() == []
        with log.open("ab") as file:
            file.write(b"\n[1]<stdout>:x [1")
        got = b"".join(chunk.data for batch in whole.batches(0.0) for chunk in batch)
    assert got == b"[1]<stdout>:x [1"
