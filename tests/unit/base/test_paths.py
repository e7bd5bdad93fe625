"""Where files are, and where they go if the run folder cannot contain sockets."""

from __future__ import annotations

import ctypes
import os
import pwd
from pathlib import Path

import pytest
from tests.support.tables import table

from ddptop_runner.base import paths
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import RunFolder, create_local_dir, local_dir_reason

NAMES = ("DDPTOP_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")


@pytest.mark.parametrize(("variables", "home"), table(__file__, "state_home"))
def test_state_home(monkeypatch, variables, home):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.chdir("/")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert paths.state_home() == Path(home)
    assert paths.runs_dir() == Path(home) / "runs"


@pytest.mark.parametrize("home", ["", "rel", "../x"])
def test_a_home_that_depends_on_the_current_folder_is_not_used(monkeypatch, home):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    true_home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert paths.state_home() == true_home / ".local/state/ddptop"
    assert paths.config_file() == true_home / ".config/ddptop/config.toml"


@pytest.mark.parametrize(
    ("base", "file"),
    [("/c", "/c/ddptop/config.toml"), ("", "/home/ann/.config/ddptop/config.toml")],
)
def test_config_file(monkeypatch, base, file):
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_CONFIG_HOME", base)
    assert paths.config_file() == Path(file)


@pytest.mark.parametrize("length", [99, 100, 101, 200])
def test_sockets_move_when_their_path_passes_the_limit(tmp_path, length):
    stem = len(os.fsencode(tmp_path / "x" / "control.sock")) - 1
    run = RunFolder(tmp_path / ("x" * (length - stem)))
    assert len(os.fsencode(run.path / "control.sock")) == length
    reason = local_dir_reason(run)
    assert (reason is None) == (length <= 100)
    if reason:
        assert "too long for a socket" in reason


@pytest.mark.parametrize(("number", "name"), sorted(paths.SHARED_FILE_SYSTEMS.items()))
def test_statfs_knows_shared_file_systems(monkeypatch, tmp_path, number, name):
    class Libc:
        def __init__(self, *_: object, **__: object) -> None: ...

        def statfs(self, path: bytes, buffer: object) -> int:
            assert Path(os.fsdecode(path)) == tmp_path  # the nearest existing folder
            signed = number - 2**32 if number >= 2**31 else number
            buffer._obj.f_type = signed  # as passed by a 32-bit kernel type
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Libc)
    run = RunFolder(tmp_path / "not" / "yet")
    assert paths.shared_file_system(run.path) == name
    assert local_dir_reason(run) == f"the run folder is on {name}"


@pytest.fixture
def local_disk(monkeypatch, tmp_path) -> Path:
    """Used in place of /var/tmp."""
    disk = tmp_path / "local"
    disk.mkdir()
    monkeypatch.setattr(paths, "LOCAL_DISK", disk)
    return disk


@pytest.fixture
def run(tmp_path) -> RunFolder:
    path = tmp_path / "train"
    path.mkdir()
    return RunFolder(path)


def test_local_folder_holds_the_live_files_and_is_found_through_the_pointer(local_disk, run):
    assert run.live_dir == run.path
    local = create_local_dir(run)
    assert local.parent == local_disk
    assert local.stat().st_mode & 0o777 == 0o700
    again = RunFolder(run.path)
    for seen in (run, again):  # whoever created it discards the cached result
        assert seen.live_dir == local
        assert seen.control_socket == local / "control.sock"
        assert seen.probe_socket == local / "probe.sock"
    assert create_local_dir(again) == local


def test_history_is_read_where_it_lies(local_disk, run):
    local = create_local_dir(run)
    assert run.history_db == run.path / "history.db"
    (local / "history.db").touch()
    assert run.history_db == local / "history.db"


@pytest.mark.parametrize(
    "content",
    [
        *[b"", b"\n", b".", b"/", b"/home/ann/0123456789abcdef", b"\xff", b"a\0b"],
        *[
            b"%(base)s",
            b"%(base)s/..",
            b"%(base)s/../x",
            b"%(base)s/ddptop-0-0123456789abcdef-abcdefgh",
        ],
    ],
)
def test_a_damaged_pointer_leads_nowhere(local_disk, run, content):
    run.local_pointer.write_bytes(content.replace(b"%(base)s", os.fsencode(local_disk)))
    assert run.live_dir == run.path


def test_nobody_can_know_a_local_folders_name_before(local_disk, run):
    """Otherwise, another user could create it first."""
    first = create_local_dir(run)
    first.rmdir()
    assert create_local_dir(run) != first


@pytest.mark.parametrize("kind", ["link", "file", "theirs"])
def test_a_local_folder_that_another_user_recreates_is_replaced(local_disk, run, kind):
    first = create_local_dir(run)
    first.rmdir()
    if kind == "link":
        first.symlink_to(run.path)
    elif kind == "file":
        first.touch()
    elif os.geteuid():
        pytest.skip("only root can give a folder away")
    else:
        first.mkdir()
        os.chown(first, 65534, 65534)
    second = create_local_dir(run)
    assert second != first
    assert RunFolder(run.path).live_dir == second


def test_a_local_disk_that_cannot_be_used_is_one_line(local_disk, run):
    local_disk.rmdir()
    with pytest.raises(UsageError, match="DDPTOP_HOME") as caught:
        create_local_dir(run)
    assert str(local_disk) in str(caught.value)
    assert not run.local_pointer.exists()
