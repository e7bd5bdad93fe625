"""Where files are, and where they go if the run folder cannot contain sockets."""

from __future__ import annotations

import ctypes
import os
import pwd
from pathlib import Path

import pytest

from ddptop_runner.base import paths
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import RunFolder, create_local_dir, local_dir_reason

NAMES = ("DDPTOP_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        ({"DDPTOP_HOME": "/a", "XDG_STATE_HOME": "/b"}, "/a"),
        ({"XDG_STATE_HOME": "/b"}, "/b/ddptop"),
        ({}, "/home/ann/.local/state/ddptop"),
        ({"DDPTOP_HOME": "", "XDG_STATE_HOME": ""}, "/home/ann/.local/state/ddptop"),
        ({"DDPTOP_HOME": "rel"}, "/rel"),
    ],
)
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


def test_every_file_of_a_job_lies_in_its_run_folder(tmp_path):
    run = RunFolder(tmp_path / "train")
    files = [
        *[run.spec_file, run.node_file("node"), run.log_file(2, 11), run.evidence_dir],
        *[run.supervisor_log, run.handover_file, run.history_db],
        *[run.control_socket, run.probe_socket],
    ]
    assert [str(file.relative_to(run.path)) for file in files] == [
        *["job.json", "nodes/node.json", "logs/attempt-2/rank-11.log", "evidence"],
        *["supervisor.log", "handover.json", "history.db"],
        *["control.sock", "probe.sock"],
    ]
    assert run.job == "train"
    assert not run.path.exists()  # reading creates nothing


@pytest.mark.parametrize("length", [99, 100, 101, 200])
def test_sockets_move_when_their_path_passes_the_limit(tmp_path, length):
    stem = len(os.fsencode(tmp_path / "x" / "control.sock")) - 1
    run = RunFolder(tmp_path / ("x" * (length - stem)))
    assert len(os.fsencode(run.path / "control.sock")) == length
    reason = local_dir_reason(run)
    assert (reason is None) == (length <= 100)
    if reason:
        assert "too long for a socket" in reason


def test_length_is_counted_in_bytes():
    for letter, fits in (("x", True), ("日", False)):
        run = RunFolder(Path("/dev/shm") / (letter * 40))
        assert len(str(run.path / "control.sock")) == 62
        assert (local_dir_reason(run) is None) == fits


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


def test_a_local_disk_is_no_shared_one():
    assert paths.shared_file_system(Path("/proc/self")) is None
    assert paths.shared_file_system(Path("/dev/shm/none/such")) is None


@pytest.fixture
def local_base(monkeypatch, tmp_path) -> Path:
    """Used in place of /var/tmp/ddptop-<uid>."""
    base = tmp_path / "local"
    monkeypatch.setattr(paths, "_local_base", lambda: base)
    return base


@pytest.fixture
def run(tmp_path) -> RunFolder:
    path = tmp_path / "train"
    path.mkdir()
    return RunFolder(path)


def test_the_real_place_is_the_users_own_and_short_enough_for_sockets(monkeypatch):
    assert paths._local_base() == Path(f"/var/tmp/ddptop-{os.getuid()}")
    monkeypatch.setattr(paths.os, "getuid", lambda: 2**32 - 2)
    assert len(str(paths._local_base() / ("0" * 16) / "control.sock")) <= 100


def test_local_folder_holds_the_live_files_and_is_found_through_the_pointer(local_base, run):
    assert run.live_dir == run.path
    local = create_local_dir(run)
    assert local.parent == local_base
    assert local.stat().st_mode & 0o777 == 0o700
    assert local_base.stat().st_mode & 0o777 == 0o700
    again = RunFolder(run.path)
    for seen in (run, again):  # whoever created it discards the cached result
        assert seen.live_dir == local
        assert seen.control_socket == local / "control.sock"
        assert seen.probe_socket == local / "probe.sock"
    assert create_local_dir(again) == local


def test_history_is_read_where_it_lies(local_base, run):
    local = create_local_dir(run)
    assert run.history_db == run.path / "history.db"
    (local / "history.db").touch()
    assert run.history_db == local / "history.db"


def test_two_jobs_never_share_a_local_folder(local_base, tmp_path):
    found = set()
    for name in ("a/train", "b/train"):
        (tmp_path / name).mkdir(parents=True)
        found.add(create_local_dir(RunFolder(tmp_path / name)))
    assert len(found) == 2


@pytest.mark.parametrize(
    "content",
    [
        *[b"", b"\n", b".", b"/", b"/home/ann/0123456789abcdef", b"\xff", b"a\0b"],
        *[b"%(base)s", b"%(base)s/..", b"%(base)s/../x", b"%(base)s/0123456789abcdef/.."],
    ],
)
def test_a_damaged_pointer_leads_nowhere(local_base, run, content):
    local_base.mkdir()
    run.local_pointer.write_bytes(content.replace(b"%(base)s", os.fsencode(local_base)))
    assert run.live_dir == run.path


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_is_not_ours_in_var_tmp_is_refused(local_base, run, kind):
    if kind == "file":
        local_base.touch()
    else:
        target = local_base.with_name("theirs")
        if kind == "link":
            target.mkdir()
        local_base.symlink_to(target)
    with pytest.raises(UsageError, match="DDPTOP_HOME") as caught:
        create_local_dir(run)
    assert str(local_base) in str(caught.value)
    assert not run.local_pointer.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_in_var_tmp_is_refused(local_base, run):
    local_base.mkdir()
    os.chown(local_base, 65534, 65534)
    with pytest.raises(UsageError, match="not owned by this user"):
        create_local_dir(run)
