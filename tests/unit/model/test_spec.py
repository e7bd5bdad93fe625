"""Names, `job.json`, and files that are replaced atomically."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.builders import make_spec

from ddptop_runner.base.errors import DamagedFileError, OtherSchemaError, UsageError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.spec import (
    MAX_NAME_LENGTH,
    Device,
    check_name,
    derive_name,
    read_spec,
    write_spec,
)


@pytest.mark.parametrize("name", ["train", "a", "7", "_x", "Llama-3_70B", "x" * MAX_NAME_LENGTH])
def test_usable_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is empty"),
        ("-x", "'-x' is not a valid tmux session name"),
        ("a.b", "'a.b' is not a valid"),  # tmux replaces dots
        ("a:b", "is not a valid"),
        ("a b", "is not a valid"),
        ("a/b", "is not a valid"),
        ("..", "is not a valid"),
        ("träin", "is not a valid"),
        ("a\n", "is not a valid"),
        ("x" * (MAX_NAME_LENGTH + 1), f"has {MAX_NAME_LENGTH + 1} characters"),
    ],
)
def test_unusable_names(name, words):
    with pytest.raises(UsageError, match="name") as caught:
        check_name(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("train.py", "train"),
        ("examples/train.py", "train"),
        ("/w/run.v2.py", "run-v2"),
        ("./my script.py", "my-script"),
        ("/w/train", "train"),
        ("package.train", "train"),
        ("train", "train"),
        ("-.py", "job"),
        ("/w/日本.py", "job"),
        ("x" * 99 + ".py", "x" * (MAX_NAME_LENGTH - 4)),
    ],
)
def test_derived_names(target, name):
    assert derive_name(target) == name
    assert check_name(f"{derive_name(target)}-999"[:MAX_NAME_LENGTH])


def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "train"
    path.mkdir()
    return RunFolder(path)


def test_a_spec_comes_back_as_it_was_written(tmp_path):
    run = folder(tmp_path)
    spec = make_spec(
        args=["--lr", "1e-3", "ü", ""],
        devices=[Device(index=3, uuid="GPU-3", name="H100"), Device(index=0)],
        hang_timeout_s=0.5,
        env_names=["HOME"],
    )
    write_spec(run, spec)
    assert read_spec(run) == spec
    assert run.spec_file.stat().st_mode & 0o777 == 0o600


def test_a_command_line_is_one_line_that_a_shell_would_take():
    words = ["printf", "[%s]", "a\nb\t'c'\\n\x1b[31m", "it's", "", "$x", "é"]
    spec = make_spec(kind="command", target=words[0], args=tuple(words[1:]))
    line = spec.command_line().removeprefix("-- ")
    assert line.isprintable()
    shown = [
        subprocess.run(argv, capture_output=True, check=True).stdout
        for argv in (words, ["bash", "-c", line])
    ]
    assert shown[0] == shown[1] != b""


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema":1}', b'"job"', b"\xff\xfe", b'{"schema":"new"}']
)
def test_a_damaged_spec_is_named_with_a_remedy(tmp_path, content):
    run = folder(tmp_path)
    run.spec_file.write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        read_spec(run)
    assert str(run.spec_file) in str(caught.value)
    assert "ddptop rm train" in str(caught.value)
    assert not isinstance(caught.value, OtherSchemaError)


def test_a_spec_of_another_version_is_refused_and_never_to_be_removed(tmp_path):
    run = folder(tmp_path)
    write_spec(run, make_spec())
    newer = {**json.loads(run.spec_file.read_bytes()), "schema": 2, "kind": "command"}
    run.spec_file.write_text(json.dumps(newer))
    with pytest.raises(OtherSchemaError) as caught:
        read_spec(run)
    assert str(caught.value) == (
        f"{run.spec_file} was written by another version of ddptop (schema 2; supported: 1); use"
        " that version"
    )


def test_write_atomic_replaces_the_file_and_leaves_nothing_beside_it(tmp_path):
    target = tmp_path / "a.json"
    write_atomic(target, b"old")
    held = target.open("rb")
    write_atomic(target, b"new")
    with held:
        assert held.read() == b"old"  # a reader keeps the file that it opened
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_keeps_the_old_file_and_cleans_up(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    write_atomic(target, b"old")

    def full(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]
