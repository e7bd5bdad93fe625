"""A socket to hear probes on, and a way to run a script as a rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.programs import piped

from ddptop_runner import probe
from ddptop_runner.model.probe_message import MAX_BYTES, ProbeMessage, decode_message

INJECT = Path(probe.__path__[0]) / "inject"
LIGHT = Path(__file__).with_name("light")


class Receiver:
    """The supervisor's end: collects what probes send to one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw: list[bytes] = []
        self._caught_up = threading.Event()
        self.bind()

    def bind(self) -> None:
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while data := self._socket.recv(MAX_BYTES * 4):
            if data == b"?":
                self._caught_up.set()
            else:
                self.raw.append(data)

    def close(self) -> None:
        """Read what is there and vanish, as a supervisor that is killed."""
        self._tell(b"")
        self._thread.join()
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _tell(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(data, str(self.path))

    @property
    def messages(self) -> list[ProbeMessage]:
        """All that was sent up to now."""
        self._caught_up.clear()
        self._tell(b"?")
        assert self._caught_up.wait(60)
        decoded = [decode_message(data) for data in self.raw]
        assert None not in decoded, "a probe sent what cannot be decoded"
        assert all(len(data) <= MAX_BYTES for data in self.raw)
        return [message for message in decoded if message is not None]

    def of(self, pid: int) -> list[ProbeMessage]:
        return [message for message in self.messages if message.pid == pid]

    def last(self, pid: int) -> ProbeMessage:
        final = [message for message in self.of(pid) if message.final]
        assert len(final) == 1, f"{len(final)} last messages of {pid}"
        return final[0]


@dataclass
class Rank:
    """Runs scripts as the agent runs a rank."""

    receiver: Receiver
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, *argv: str, python: str = sys.executable, has_probe: bool = True, **changes: str
    ) -> subprocess.Popen[str]:
        env = {**self.env, **changes}
        if not has_probe:
            env = {k: v for k, v in env.items() if k != "DDPTOP_PROBE_SOCK"}
            env["PYTHONPATH"] = os.pathsep.join(env["PYTHONPATH"].split(os.pathsep)[1:])
            env = {k: v for k, v in env.items() if v}
        pipe = subprocess.PIPE
        process = piped(python, *argv, env=env, cwd=self.folder, stderr=pipe)
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Leave nothing of a test that failed half-way."""
        for process in self.processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def run(self, *argv: str, **options: object) -> tuple[int, str, str]:
        """Run to the end: (exit status, stdout, stderr)."""
        process = self.start(*argv, **options)  # type: ignore[arg-type]
        out, err = process.communicate(timeout=600)
        return process.returncode, out, err

    def write(self, name: str, text: str) -> str:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return str(file)


def same_with_and_without(rank: Rank, *argv: str, **options: str) -> tuple[int, str, str]:
    """What a process answers, which must be the same with and without the probe."""
    plain, probed = (rank.run(*argv, has_probe=has, **options) for has in (False, True))
    for of_probed, of_plain in zip(probed[1:], plain[1:], strict=True):
        assert of_probed.splitlines() == of_plain.splitlines()
    assert probed == plain
    return probed


@pytest.fixture(scope="module")
def module_rank() -> Iterator[Rank]:
    yield from make_rank()


@pytest.fixture
def rank() -> Iterator[Rank]:
    yield from make_rank()


def make_rank() -> Iterator[Rank]:
    with tempfile.TemporaryDirectory(prefix="ddptop-probe-") as name:
        folder = Path(name)
        receiver = Receiver(folder / "probe.sock")
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(INJECT), str(LIGHT)]),
            "DDPTOP_JOB_ID": "cats@1f2e",
            "DDPTOP_PROBE_SOCK": str(receiver.path),
            "DDPTOP_ATTEMPT": "2",
            "DDPTOP_STACKS_DIR": str(folder / "stacks"),
            "RANK": "3",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
        }
        rank = Rank(receiver, folder, env)
        try:
            yield rank
        finally:
            rank.end()
            receiver.close()


@pytest.fixture
def stub_torch(rank: Rank) -> Rank:
    """A rank whose `torch` is an empty module: enough for all that does not train."""
    rank.write("stub/torch.py", "")
    rank.env["PYTHONPATH"] += os.pathsep + str(rank.folder / "stub")
    return rank


def lines(text: str) -> list[dict[str, Any]]:
    """The JSON lines of a script's stdout."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
