"""Record trainings as traces, which the tests replay, and print what ddptop says about them.

    python benchmarks/healthy/record.py [NAMES] [--seconds 300] [--together 8] [--out FOLDER]
    python benchmarks/healthy/record.py sick:starved sick:straggler --seconds 100
    python benchmarks/healthy/record.py --list

Each name is one of kinds.py, or `sick:KIND` for a mistake of `ddptop demo --sick`. `--python` names
an interpreter that has torch and the frameworks: accelerate, Lightning, transformers,
tensorboard. Without it, the kinds that need them are left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from common import Home  # noqa: E402
from kinds import KINDS, Kind  # noqa: E402
from tests.support import traces  # noqa: E402

TRAIN = Path(__file__).with_name("kinds.py")
SICK = "sick:"
ONE_START = threading.Lock()
"""Several at a time would only take longer."""
IS_OVER = threading.Event()
"""Set when this program is ended."""
SPIN = "while True: pass"


class Recording:
    """A training that is being recorded.

    Args:
        name: of its kind.
        kind: the kind; None for a sick demo.
        seconds: how long to record it.
        python: an interpreter with the frameworks.
    """

    def __init__(self, name: str, kind: Kind | None, seconds: float, python: str | None) -> None:
        self.name, self.kind = name, kind
        self.recorder = traces.Recorder()
        self._home = Home()
        self._home.env["HOME_OF_DATA"] = str(self._home.path)
        self._began_s, self._seconds = time.monotonic(), seconds
        self._modified_ns = 0
        self._log = ""
        self._spinners: list[subprocess.Popen[bytes]] = []
        if kind is None:
            arguments = ["demo", "-d", "--sick", name.removeprefix(SICK), "--", "--seconds", "3600"]
        else:
            arguments = ["launch", "-d", "--gpus", "none", "--name", name]
            arguments += ["--cwd", str(self._home.path)]
            arguments += ["--python", python] if python and kind.needs else []
            arguments += kind.command(sys.executable, str(TRAIN), name)
        self.job = self._home.ddptop(*arguments).stdout.strip()
        self._nodes = self._home.path / "home" / "runs" / self.job / "nodes"

    def look(self) -> bool:
        """Take the latest snapshot; returns whether to go on."""
        for file in self._nodes.glob("*.json"):
            modified_ns = file.stat().st_mtime_ns
            if modified_ns != self._modified_ns:
                self._modified_ns = modified_ns
                data = file.read_bytes()
                self.recorder.add(data, psutil.virtual_memory().available)
        passed_s = time.monotonic() - self._began_s
        if self.kind is not None and self.kind.is_beside_others:
            self._spin(passed_s)
        rows = self.recorder.rows
        return passed_s < self._seconds and not (rows and rows[-1].get("ended_at"))

    def _spin(self, passed_s: float) -> None:
        """Other programs take the CPUs for half of each minute, in a session of their own."""
        should_spin = passed_s % 60.0 >= 30.0
        if should_spin and not self._spinners:
            self._spinners = [
                subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=True)
                for _ in range(os.cpu_count() or 1)
            ]
        elif not should_spin:
            self._end_spinners()

    def _end_spinners(self) -> None:
        for spinner in self._spinners:
            spinner.send_signal(signal.SIGKILL)
            spinner.wait()
        self._spinners = []

    def end(self) -> None:
        """End the training."""
        self._end_spinners()
        rows = self.recorder.rows
        if rows and rows[-1]["state"] == "failed":
            self._log = self._home.ddptop("logs", self.job, "-n", "15", check=False).stdout
        if not (rows and rows[-1].get("ended_at")):
            self._home.ddptop("kill", self.job, check=False)
        self._home.close()

    def in_words(self) -> str:
        """What happened to it."""
        rows = self.recorder.rows
        steps = [rows[-1].get(f"ranks.{n}.step") for n in range(8)] if rows else []
        taken = [step for step in steps if step is not None]
        trace = traces.Trace(self.name, rows)
        replay = traces.Replay(trace)
        gaps_s = [after["at_s"] - before["at_s"] for before, after in itertools.pairwise(rows)]
        state = rows[-1]["state"] if rows else "never seen"
        words = f"{self.name}: {state}, steps {taken}, longest gap {max(gaps_s, default=0):.1f} s"
        for id_, after_s in trace.told.items():
            words += f"\n    live after {after_s} s: {id_}"
        for id_, (after_s, alert) in replay.raised.items():
            words += f"\n    replayed after {after_s} s: {id_} ({alert.severity}): {alert.message}"
        for one in replay.amber[:3]:
            words += f"\n    {one}"
        words += f"\n{self._log}" if self._log else ""
        return words


def chosen(names: Sequence[str], python: str | None) -> dict[str, Kind | None]:
    """The kinds of those names; all that can run, if there is none."""
    if names:
        return {name: None if name.startswith(SICK) else KINDS[name] for name in names}
    return {name: kind for name, kind in KINDS.items() if python or not kind.needs}


def record(
    name: str,
    kind: Kind | None,
    seconds: float,
    python: str | None,
    is_enough: Callable[[Recording], bool] = lambda _: False,
) -> Recording:
    """Record one training, and end it."""
    with ONE_START:
        recording = Recording(name, kind, seconds, python)
    try:
        while recording.look() and not is_enough(recording) and not IS_OVER.is_set():
            time.sleep(0.1)
    finally:
        recording.end()
    return recording


def run_together(together: int, jobs: Sequence[Callable[[], None]]) -> None:
    """Run jobs in so many threads; SIGTERM ends them all in order."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ThreadPoolExecutor(together) as pool:
        try:
            for future in [pool.submit(job) for job in jobs]:
                future.result()
        except BaseException:
            IS_OVER.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def main() -> None:
    """Record the named trainings, several at a time."""
    parser = argparse.ArgumentParser(description="Record trainings as traces.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--out", type=Path, default=traces.FOLDER)
    parser.add_argument("--python")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, kind in KINDS.items():
            print(f"{name:24}{' needs ' + kind.needs if kind.needs else ''}")
        return
    options.out.mkdir(parents=True, exist_ok=True)

    def record_to_file(name: str, kind: Kind | None) -> None:
        recording = record(name, kind, options.seconds, options.python)
        print(f"{time.strftime('%X')} {recording.in_words()}", flush=True)
        if recording.recorder.rows:
            file = options.out / f"{name.replace(':', '-')}{traces.ENDING}"
            file.write_bytes(traces.encode(recording.recorder.rows))

    kinds = chosen(options.names, options.python)
    run_together(options.together, [partial(record_to_file, *one) for one in kinds.items()])


if __name__ == "__main__":
    main()
