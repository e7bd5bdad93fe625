"""A simulated NVIDIA driver, and programs that use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.nvml_stub import NoCompilerError, StubDriver, StubGpu, build_library
from tests.support.programs import piped

READER = """
import os, sys
from ddptop_runner.host import procs
from ddptop_runner.devices.sampler import open_backend
from ddptop_runner.devices.owners import INIT_PID_NAMESPACE
from ddptop_runner.model.snapshot import encode
namespace = INIT_PID_NAMESPACE + ("IN_CONTAINER" in os.environ)
procs.pid_namespace = lambda: namespace
uuids = sys.argv[1].split(",") if len(sys.argv) > 1 else None
backend = open_backend(uuids)
for line in sys.stdin:
    gpus = backend.sample(float(line))
    answer = {"source": backend.source, "driver": backend.driver, "note": backend.note}
    print(encode({**answer, "gpus": gpus}).decode(), flush=True)
"""


class Reader:
    """The real back end in a separate process, one tick at a time, at any simulated time.

    A minute of sampling takes a moment, and all of its queries can be counted.
    """

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        self.process = piped(sys.executable, "-c", READER, *arguments, env=env)

    def report(self, at_s: float) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{at_s}\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self.process.stdout.readline())

    def sample(self, at_s: float) -> list[dict[str, Any]]:
        return self.report(at_s)["gpus"]

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


@pytest.fixture
def make_stub(tmp_path: Path) -> Callable[..., StubDriver]:
    try:
        build_library()
    except NoCompilerError as error:
        pytest.skip(str(error))

    def make(gpus: int | list[StubGpu] = 2, **options: Any) -> StubDriver:
        return StubDriver(tmp_path, gpus, **options)

    return make


@pytest.fixture
def make_reader() -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(stub: StubDriver, *arguments: str, **variables: str) -> Reader:
        readers.append(Reader({**stub.env(), **variables}, *arguments))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


@pytest.fixture
def no_library_env(tmp_path: Path) -> dict[str, str]:
    """The environment of a program that cannot load NVML, even on a machine that has it."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").touch()
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}
