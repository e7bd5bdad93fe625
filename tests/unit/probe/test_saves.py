"""Files that are saved: what counts as one, and that nobody notices."""

from __future__ import annotations

import inspect
import io
import os
import sys
import tempfile
import types
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.support.probe_ranks import Rank, same_with_and_without

from ddptop_runner.probe import probe, saves
from ddptop_runner.probe.recorder import SAVED_TOGETHER_S, Recorder
from ddptop_runner.probe.saves import Saves

SCRIPTS = Path(__file__).parent / "scripts"


def original(obj: object, f: Any, *, fails: bool = False) -> str:
    """Saves."""
    if fails:
        raise KeyError("mine")
    if isinstance(f, (str, os.PathLike)):
        Path(f).write_bytes(b"x" * 10)
    else:
        f.write(b"x" * 10)
    return "returned"


@pytest.fixture
def record() -> Recorder:
    return Recorder()


@pytest.fixture
def save(record: Recorder) -> Any:
    wrapped = Saves(record, lambda: False).wrap(original, saves.torch_target)
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert (wrapped.__name__, wrapped.__doc__) == ("original", "Saves.")
    return wrapped


def test_a_path_is_noted_when_the_call_has_returned(record, save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record.progress = (7, 1.0, None)
    record.dirty = False
    assert save({}, "a.pt") == "returned" and record.dirty
    saved = record.saved
    assert (saved["path"], saved["n"], saved["steps"]) == (str(tmp_path / "a.pt"), 1, 7)
    assert saved["size_bytes"] == 10 and saved["inode"] == Path("a.pt").stat().st_ino
    assert 1.0 < saved["began_t"] <= saved["ended_t"] and record.saving == {}
    save({}, PurePosixPath("b.pt"))
    save({}, f="c.pt")
    assert record.saved["n"] == 3


def test_open_files_count_with_what_is_in_their_buffers(record, save, tmp_path):
    with (tmp_path / "a").open("wb") as file:
        save({}, file)
    assert (record.saved["path"], record.saved["size_bytes"]) == (str(tmp_path / "a"), 10)
    with tempfile.NamedTemporaryFile(dir=tmp_path) as file:
        save({}, file)
    assert record.saved["n"] == 2


class OddFile(io.BytesIO):
    name = "/tmp/odd"

    def fileno(self) -> int:
        raise RuntimeError("asked")


def test_what_is_no_file_is_no_checkpoint(record, save, tmp_path):
    assert save({}, io.BytesIO()) == save({}, OddFile()) == save({}, "/dev/null") == "returned"
    with (tmp_path / "pipe").open("wb") as file:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        save({}, file)
    read_fd, write_fd = os.pipe()
    with os.fdopen(write_fd, "wb") as file:
        save({}, file)
    os.close(read_fd)
    long = tmp_path.joinpath(*["n" * 200] * 5)
    long.mkdir(parents=True)
    save({}, long / "a")
    save({}, os.fsencode(tmp_path).decode() + "/\udcff")
    assert record.saved is None and record.saving == {}


def test_a_save_that_fails_is_none_and_its_traceback_is_the_scripts(record, save, tmp_path):
    with pytest.raises(KeyError, match="mine") as caught:
        save({}, tmp_path / "a", fails=True)
    assert record.saved is None and record.saving == {}
    if sys.version_info >= (3, 11):
        assert [Path(entry.path) for entry in caught.traceback] == [Path(__file__)] * 2
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        save({})


def test_nested_saves_count_once(record, tmp_path):
    wrap = Saves(record, lambda: False).wrap
    inner = wrap(original, saves.torch_target)
    seen: list[int] = []

    def both(obj: object, f: Path) -> None:
        seen.append(len(record.saving))
        inner(obj, f / "part")
        seen.append(len(record.saving))

    wrap(both, saves.torch_target)({}, tmp_path)
    assert record.saved["n"] == 1 and record.saved["path"] == str(tmp_path)
    assert record.saved["size_bytes"] == 10 and seen == [1, 1]


def test_files_saved_together_are_one_checkpoint(record):
    def saved(path: str, began_t: float, size: int, steps: int | None = 5) -> tuple[Any, ...]:
        record.has_saved(path, began_t, began_t + 1, steps, size, 100 + size, 200 + size)
        names = ("path", "n", "began_t", "ended_t", "size_bytes", "inode")
        return tuple(record.saved[name] for name in names)

    assert saved("/r/1/model", 10.0, 50) == ("/r/1/model", 1, 10.0, 11.0, 50, 150)
    assert saved("/r/1/optimizer", 12.0, 90) == ("/r/1/optimizer", 2, 10.0, 13.0, 90, 190)
    assert saved("/r/1/rng", 13.0, 2) == ("/r/1/optimizer", 3, 10.0, 14.0, 90, 190)
    assert saved("/r/2/model", 14.0, 9)[0] == "/r/2/model"
    assert saved("/r/2/rng", 16.0 + SAVED_TOGETHER_S, 2)[0] == "/r/2/rng"
    assert saved("/r/2/next", 21.0, 1, steps=6)[0] == "/r/2/next"


def test_distributed_checkpoints_name_their_folder(tmp_path):
    writer = types.SimpleNamespace(path=tmp_path)
    assert saves.distributed_target({}, checkpoint_id="d", storage_writer=writer) == "d"
    assert saves.distributed_target({}, storage_writer=writer) == tmp_path
    assert saves.path_of("s3://bucket/run/1") == "s3://bucket/run/1"


def test_the_largest_files_loaded_before_the_first_step_are_reported(record, tmp_path):
    def load(f: Any) -> bytes:
        return Path(f).read_bytes()

    observed = Saves(record, lambda: False).wrap(load, saves.torch_source, loads=True)
    for size in range(1, 10):
        (tmp_path / f"{size}").write_bytes(b"x" * size)
        assert len(observed(tmp_path / f"{size}")) == size
    observed(tmp_path / "9")
    with pytest.raises(FileNotFoundError):
        observed(tmp_path / "none")
    assert [size for size, _, _ in record.loaded] == [9, 8, 7, 6, 5, 4]
    nine = (tmp_path / "9").stat()
    assert record.loaded[0] == [9, nine.st_ino, nine.st_mtime_ns]
    record.progress = (1, 1.0, None)  # training: a data set may load a file for each sample
    (tmp_path / "later").write_bytes(b"x" * 20)
    observed(tmp_path / "later")
    assert len(record.loaded) == 6 and record.loaded[0][0] == 9


def test_all_modules_that_save_are_awaited():
    assert set(probe.SAVERS) == {*saves.SAVERS, *saves.LOADERS}


# --- real torch ------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.skipif(sys.version_info < (3, 11), reason="a wrapper stays in tracebacks")
def test_a_script_that_saves_notices_nothing(rank):
    status, out, err = same_with_and_without(rank, str(SCRIPTS / "saving.py"))
    assert status == 1 and "Parent directory" in err and "mine: patched" in out
    said = [message.saved for message in rank.receiver.messages if message.saved is not None]
    assert said[-1].path == str(rank.folder / "twice.pt") and said[-1].n == 4
    (loaded,) = rank.receiver.messages[-1].loaded
    file = (rank.folder / "a.pt").stat()
    assert (loaded.inode, loaded.size_bytes) == (file.st_ino, file.st_size)


@pytest.mark.torch
def test_folders_of_distributed_checkpoints_and_later_modules_are_seen(rank, wait_until):
    rank.write("stub/safetensors/__init__.py", "")
    rank.write(
        "stub/safetensors/torch.py",
        "def save_file(tensors, filename, metadata=None): open(filename, 'wb').write(b'12345')\n"
        "def load_file(filename, device='cpu'): return open(filename, 'rb').read()\n",
    )
    rank.env["PYTHONPATH"] += os.pathsep + str(rank.folder / "stub")
    process = rank.start("-W", "ignore", str(SCRIPTS / "saving_apart.py"))
    assert process.stdin is not None
    for name in ("dcp", "async"):
        wait_until(lambda name=name: name in saved_names(rank), what=f"word of {name}")
        process.stdin.write("\n")
        process.stdin.flush()
    _, err = process.communicate()
    assert process.returncode == 0, err
    saved = rank.receiver.last(process.pid).saved
    assert saved is not None
    assert (saved.path, saved.n, saved.size_bytes) == (str(rank.folder / "s" / "m.st"), 3, 5)
    assert list(dict.fromkeys(saved_names(rank))) == ["dcp", "async", "m.st"]
    loaded = {one.inode: one for one in rank.receiver.last(process.pid).loaded}
    of_dcp = next(m.saved for m in rank.receiver.messages if m.saved is not None)
    for one in (saved, of_dcp):
        found = loaded[one.inode]
        assert (found.size_bytes, found.mtime_ns) == (one.size_bytes, one.mtime_ns)


def saved_names(rank: Rank) -> list[str]:
    return [Path(m.saved.path).name for m in rank.receiver.messages if m.saved is not None]


OFTEN = """
import os, signal, time, torch, without_compiler
weight = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
for name in "abcde":
    weight(torch.ones(1)).sum().backward()
    optimizer.step()
    torch.save({}, name)
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.torch
def test_saves_right_before_a_kill_are_known(rank):
    rank.run("-c", OFTEN)
    assert list(dict.fromkeys(saved_names(rank))) == list("abcde")
