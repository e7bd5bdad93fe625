"""A real job whose run folder's disk is full: training continues, and losses are reported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop_runner.store.logs import LogFile, last_lines

pytestmark = [pytest.mark.tmux, pytest.mark.torch]

SIZE_MIB = 16


PRINTER = '''
"""Prints numbered lines that hardly compress, and dies when a print fails."""
import os, random, sys, time
rank, stop, n = os.environ["RANK"], sys.argv[1], 0
while True:
    last = os.path.exists(stop)
    for n in range(n, n + 100):
        print("rank", rank, "line", n, random.randbytes(n * 7919 % 500).hex(), flush=True)
    n += 1
    if last:
        break
    time.sleep(0.2)
print("rank", rank, "is done", flush=True)
'''


@pytest.fixture
def small_disk(ddptop_home: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The state folder on a tmpfs of 16 MiB, or as large as the test's parameter says."""
    size = f"size={getattr(request, 'param', SIZE_MIB)}m,mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(ddptop_home)]
    refused = subprocess.run(mount, capture_output=True, text=True, check=False)
    if refused.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {refused.stderr.strip()}")
    yield ddptop_home
    subprocess.run(["umount", "-l", str(ddptop_home)], check=True)


class Hog:
    """Fills a disk and keeps it full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._fill)

    def __enter__(self) -> Hog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._path.unlink()

    def _fill(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while not self._over.wait(0.02):
            for size in (1 << 16, 4096):
                try:
                    while os.write(fd, b"x" * size) == size:
                        pass
                except OSError:
                    continue
        os.close(fd)


def numbered(text: str, rank: int) -> tuple[list[int], list[str]]:
    """The numbered lines of a rank, and its other lines."""
    found, others = [], []
    for line in text.splitlines():
        match = re.match(rf"rank {rank} line (\d+) [0-9a-f]*$", line)
        if match:
            found.append(int(match[1]))
        else:
            others.append(line)
    return found, others


def test_a_rank_that_dies_on_a_full_disk_is_restarted_once(
    small_disk, launch_script, tmp_path, wait_until
):
    stop = tmp_path / "stop"
    job = launch_script(f"import sys; sys.argv[1:] = [{str(stop)!r}]\n{PRINTER}", name="printer")
    first, second = (job.folder() / "logs" / f"attempt-{n}" / "rank-0.log" for n in (0, 1))
    wait_until(lambda: first.exists() and first.stat().st_size > 1 << 19)
    with Hog(small_disk / "hog"):
        wait_until(lambda: any(a["id"] == "disk-full" for a in job.status()["alerts"]))
        os.kill(job.status()["ranks"][0]["pid"], signal.SIGKILL)
        wait_until(lambda: second.exists() and second.stat().st_size > 1 << 19)
        stop.touch()
        assert job.wait() == 0
    assert job.status()["restarts_used"] == 1


def test_full_disk_affects_neither_the_training_nor_its_result(
    small_disk, launch_script, tmp_path, wait_until
):
    stop = tmp_path / "stop"
    job = launch_script(f"import sys; sys.argv[1:] = [{str(stop)!r}]\n{PRINTER}", name="printer")
    logs = [job.folder() / "logs" / "attempt-0" / f"rank-{rank}.log" for rank in (0, 1)]
    wait_until(lambda: all(log.exists() and log.stat().st_size > 1 << 19 for log in logs))
    wait_until(lambda: (job.folder() / "reserve").exists())

    def are_rings() -> bool:
        """Lines of both are lost."""
        for log in logs:
            with LogFile(log) as file:
                if file.first == 0:
                    return False
        return True

    def alert() -> str:
        return "".join(a["message"] for a in job.status()["alerts"] if a["id"] == "disk-full")

    with Hog(small_disk / "hog"):
        wait_until(are_rings, what="both logs are rings")
        assert job.status()["state"] in ("starting", "running")
        assert "the run folder's disk has been full" in wait_until(alert)
        assert job.status()["snapshot_age_s"] < 5
    wait_until(lambda: not alert(), what="there is space again")
    wait_until(lambda: any("has space again" in e["message"] for e in job.events("alert")))
    told = [event["message"] for event in job.events("alert")]
    for rank in (0, 1):
        words = rf"disk full: dropped the oldest [\d.]+ \w+ of rank {rank}'s log"
        assert any(re.search(words, message) for message in told), told
    back = next(message for message in told if "has space again" in message)
    assert re.search(r"it was full from \d\d:\d\d:\d\d to \d\d:\d\d:\d\d", back)
    assert "no history was lost" in back

    with Hog(small_disk / "hog"):
        wait_until(alert, what="the disk is full again")
        stop.touch()
        assert job.wait() == 0
    status = job.status()
    assert (status["state"], status["exit_code"]) == ("finished", 0)
    at_end = "the job ended with the disk full"
    wait_until(lambda: any(at_end in event["message"] for event in job.events()))
    assert len(job.events("finished")) == 1
    for rank, log in enumerate(logs):
        text = "".join(f"{line}\n" for line in last_lines(log, 1 << 30))
        found, others = numbered(text, rank)
        assert found == list(range(found[0], found[-1] + 1))  # what is left has no gap
        note, last = others
        assert "of earlier output dropped" in note and last == f"rank {rank} is done"
        shown = job.cli("logs", job.name, "-r", str(rank), "-n", "2").stdout.splitlines()
        assert shown[-1] == f"rank {rank} is done"
    assert not (job.folder() / "reserve").exists()
    assert json.loads(next((job.folder() / "nodes").glob("*.json")).read_text())["alerts"] == []
