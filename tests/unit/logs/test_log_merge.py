"""Lines of many ranks, merged."""

from __future__ import annotations

import random
from pathlib import Path

from ddptop.logs.memory import MergedLog
from ddptop.logs.merge import Merger, align, printed, similar
from ddptop.logs.messages import LogRow, Page
from ddptop.logs.search import pattern_of


def told(*texts: str) -> list[LogRow]:
    return [LogRow(0, 0, text) for text in texts]


def shown(merger: Merger) -> list[tuple[str, list[int]]]:
    return [(row.text, sorted(row.ranks)) for row in merger.rows]


def test_identical_lines_are_one_and_others_stand_where_they_were_printed() -> None:
    merger = Merger()
    merger.add(0, told("start", "[rank0]: mine", "step 1", "only 0", "step 2", "end"))
    merger.add(1, told("start", "[rank1]: mine", "step 1", "step 2", "only 1", "end"))
    merger.add(2, told("start", "mine", "step 1", "step 2", "end"))
    assert shown(merger) == [
        ("start", [0, 1, 2]),
        ("mine", [0, 1, 2]),
        ("step 1", [0, 1, 2]),
        ("only 0", [0]),
        ("step 2", [0, 1, 2]),
        ("only 1", [1]),
        ("end", [0, 1, 2]),
    ]


def test_a_rank_s_own_order_never_changes_whatever_comes_in_whatever_pieces() -> None:
    chance = random.Random(3)
    for _ in range(200):
        merger = Merger(alike=chance.random() < 0.3)
        lines = {
            rank: [chance.choice(["a", "b", "--", f"r{rank}", "c"]) for _ in range(12)]
            for rank in range(4)
        }
        at = dict.fromkeys(lines, 0)
        marks = [0]
        while any(at[rank] < 12 for rank in lines):
            rank = chance.choice([rank for rank in lines if at[rank] < 12])
            count = chance.randrange(1, 5)
            marks.append(merger.number)
            merger.add(
                rank,
                told(*lines[rank][at[rank] : at[rank] + count]),
                is_late=chance.random() < 0.5,
                old=marks[0] if len(marks) < 9 else marks[-9],
            )
            at[rank] += count
        for rank, texts in lines.items():
            kept = [row.ranks[rank] or row.text for row in merger.rows if rank in row.ranks]
            assert kept == texts


def test_lines_that_differ_in_ranks_and_times_can_be_one() -> None:
    merger = Merger(alike=True)
    merger.add(0, told("12:00:01 rank 0 on cuda:0 pid 41 ready", "loss 2.1"))
    merger.add(1, told("12:00:02 rank 1 on cuda:1 pid 42 ready", "loss 2.2"), is_late=True)
    assert shown(merger)[0] == ("12:00:01 rank 0 on cuda:0 pid 41 ready", [0, 1])
    assert merger.rows[0].ranks[1] == "12:00:02 rank 1 on cuda:1 pid 42 ready"
    assert [row.text for row in merger.rows[1:]] == ["loss 2.1", "loss 2.2"], "a loss is no time"


def test_what_stands_before_a_line_is_not_compared() -> None:
    for text in ("[rank3]: x", "[rank3]:x", "[default3]:x", "[1,3]<stdout>:x", "[3]<stderr>:x"):
        assert printed(text) == "x"
    assert printed("[INFO] x") == "[INFO] x"
    assert similar("2026-03-14T12:00:00.123Z local_rank=7") == similar(
        "2027-01-01 01:02:03,4 local_rank=0"
    )


def test_what_one_rank_prints_late_stands_at_the_end() -> None:
    merger = Merger()
    for rank in (0, 1):
        merger.add(rank, told("start"))
    merger.add(0, told(*[f"saved {n}" for n in range(50)]))
    old = merger.number
    merger.add(0, told("done"))
    merger.add(1, told("Traceback"), is_late=True)
    assert [row.text for row in merger.rows[-2:]] == ["done", "Traceback"]
    merger.add(1, told("saved 3"), is_late=True, old=old)
    assert shown(merger)[-1] == ("saved 3", [1]), "printed anew, not long ago"


def test_times_in_lines_put_them_in_their_order() -> None:
    merger = Merger()
    merger.add(0, told(*[f"2026-03-14 12:00:0{n},5 INFO step {n}" for n in range(6)], "end"))
    merger.add(1, told("[2026-03-14T12:00:02.7] slow", "  more of it", "end"))
    merger.add(2, told("2026-03-14 12:00:04,6 slow", "end"))
    assert [row.text[:5] for row in merger.rows if "INFO" not in row.text][:1] == ["[2026"]
    texts = [row.text for row in merger.rows]
    assert texts.index("  more of it") == 4 and texts[3].startswith("[2026")
    assert texts[7].endswith(",6 slow") and texts[-1] == "end"
    merger.add(3, told("no time", "2026-03-14 12:00:01,0 late"))
    assert [row.text for row in merger.rows[-2:]] == ["no time", "2026-03-14 12:00:01,0 late"]


def test_steps_in_lines_put_them_in_their_order_where_there_are_no_times() -> None:
    merger = Merger()
    for rank in range(3):
        lines = [f"step {n}/900 loss {rank}.{n}" for n in range(0, 40, 10)]
        merger.add(rank, told("hello", *lines[:2], f"WARNING of {rank}", *lines[2:]))
    assert shown(merger)[0] == ("hello", [0, 1, 2])
    steps = [(int(row.step) if row.step else None, *row.ranks) for row in merger.rows[1:]]
    assert steps == [
        *((0, rank) for rank in range(3)),
        *((step, rank) for rank in range(3) for step in (10, None)),
        *((step, rank) for step in (20, 30) for rank in range(3)),
    ]
    merger.add(1, told("step 40/900 loss 1.40"))
    merger.add(0, told("Iteration: 40 loss 0.40", "step size of the optimizer"))
    assert [text for text, _ in shown(merger)[-3:]] == [
        "step 40/900 loss 1.40",
        "Iteration: 40 loss 0.40",
        "step size of the optimizer",
    ]


def test_alignment_takes_unique_lines_as_anchors_and_copes_with_none() -> None:
    old = ["a", "-", "b", "-", "c", "-"]
    new = ["-", "b", "-", "x", "c", "-"]
    assert align(old, new) == [(1, 0), (2, 1), (3, 2), (4, 4), (5, 5)]
    assert align(["-"] * 5, ["-"] * 3) == [(0, 0), (1, 1), (2, 2)]
    assert align([], ["a"]) == []
    many = ["a", "b"] * 400
    pairs = align(many, ["x", *many[1:], "y"])
    assert len(pairs) > 700


def test_many_different_lines_are_all_kept() -> None:
    merger = Merger()
    for rank in range(16):
        merger.add(rank, told(*[f"step {n}" if n % 2 else f"{rank} {n}" for n in range(2000)]))
    assert len(merger.rows) == 1000 + 16 * 1000


def test_rows_are_bounded() -> None:
    merger = Merger(most=100)
    for n in range(50):
        merger.add(0, told(*[f"{n} {m}" for m in range(10)]))
    assert 100 <= len(merger.rows) <= 112
    assert merger.rows[-1].text == "49 9"


class TestTails:
    def write(self, folder: Path, rank: int, *lines: str) -> Path:
        path = folder / f"rank-{rank}.log"
        with path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
        return path

    def rows(self, log: MergedLog, least: str = "") -> list[tuple[str, str]]:
        return [(row.label, row.text) for row in log.rows(least)]

    def test_ends_are_merged_and_new_lines_join(self, tmp_path: Path) -> None:
        paths = {rank: self.write(tmp_path, rank, "hello", f"own {rank}") for rank in range(2)}
        log = MergedLog(paths)
        assert self.rows(log) == [("0-1", "hello"), ("0", "own 0"), ("1", "own 1")]
        assert not log.refreshed(Page())
        self.write(tmp_path, 0, "step 1")
        assert log.refreshed(Page())
        assert self.rows(log)[-1] == ("0", "step 1")
        self.write(tmp_path, 1, "step 1", "\x1b[31mERROR\x1b[0m: gone")
        assert log.refreshed(Page())
        assert self.rows(log)[-2:] == [("0-1", "step 1"), ("1", "ERROR: gone")]
        assert self.rows(log, "error") == [("1", "ERROR: gone")]

    def test_unfinished_line_is_kept_separate(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, 0, "hello")
        log = MergedLog({0: path})
        with path.open("a") as file:
            file.write("\r10%\r20%")
        page = log.refreshed(Page())
        assert page is not None and page.partial is not None and page.partial.text == "20%"
        assert self.rows(log) == [("0", "hello")]
        with path.open("a") as file:
            file.write("\r30%\nmore\n")
        page = log.refreshed(page)
        assert page is not None and page.partial is None
        assert self.rows(log) == [("0", "hello"), ("0", "30%"), ("0", "more")]

    def test_only_the_end_of_long_logs_is_read_with_a_note(self, tmp_path: Path) -> None:
        paths = {
            rank: self.write(tmp_path, rank, *[f"step {n}" for n in range(3000)])
            for rank in range(2)
        }
        rows = self.rows(MergedLog(paths))
        assert rows[0][1].startswith("──── last 2,000 lines from each rank")
        assert rows[1:] == [("0-1", f"step {n}") for n in range(1000, 3000)]
        found = [
            row for _, rows in MergedLog(paths).matches(pattern_of("rank"), None, 1) for row in rows
        ]
        assert found == [], "the note is no output"
        assert MergedLog(dict.fromkeys(range(1024), tmp_path / "none")).limit == 31

    def test_a_flood_is_skipped_with_a_note(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, 0, "hello")
        log = MergedLog({0: path})
        self.write(tmp_path, 0, *[f"line {n} {'x' * 90}" for n in range(20_000)])
        assert log.refreshed(Page())
        rows = self.rows(log)
        assert rows[-1][1].startswith("line 19999") and len(rows) < 5000
        assert any("output too fast to follow" in text for _, text in rows)
        assert not any(rows for _, rows in log.matches(pattern_of("too fast"), None, 1))

    def test_merging_stops_once_nobody_waits_for_it(self, tmp_path: Path) -> None:
        paths = {rank: self.write(tmp_path, rank, f"own {rank}") for rank in range(9)}
        stale = iter([False, False, True])
        assert len(self.rows(MergedLog(paths, is_stale=lambda: next(stale)))) == 2

    def test_a_missing_log_is_no_trouble_and_a_new_rank_is_taken_in(self, tmp_path: Path) -> None:
        log = MergedLog({0: tmp_path / "none.log"})
        assert self.rows(log) == []
        log.add(1, self.write(tmp_path, 1, "late"))
        assert log.refreshed(Page())
        assert self.rows(log) == [("1", "late")]
