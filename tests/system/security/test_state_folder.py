"""Who may look into a user's state folder, whatever the umask, and what another's says."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import uuid
from pathlib import Path

import msgspec
import pytest
from ddptop.tui import settings
from tests.support.builders import put_job
from tests.system.security.test_run_folders import in_time

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import (
    RunFolder,
    close_to_others,
    require_own_run,
    run_folder,
    runs_dir,
    why_not_own,
)
from ddptop_runner.host import procs, tmux_server
from ddptop_runner.job.registry import read_all, read_job
from ddptop_runner.jobs.commands import remove
from ddptop_runner.launch.gpus import usage

VERBS = {
    "ls": ["ls"],
    "status": ["status"],
    "logs": ["logs", "train"],
    "events": ["events", "train"],
    "stop": ["stop", "train"],
    "kill": ["kill", "train"],
    "rm": ["rm", "train"],
    "wait": ["wait", "train"],
    "restart": ["restart", "train"],
    "launch": ["launch", "-d", "--", "true"],
}


def open_to_others(folder: Path) -> list[str]:
    """What others may do something with, or the owner nothing."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = 0o700 if path.is_dir() else 0o600
        if not path.is_symlink() and mode & 0o777 != wanted:
            found.append(f"{path.relative_to(folder)} {mode:04o}")
    return found


@pytest.mark.tmux
@pytest.mark.parametrize(
    ("umask", "held"), [("0000", "tmux"), ("0777", "tmux"), ("0777", "daemon")]
)
def test_all_files_of_a_job_are_private_regardless_of_umask(victim, wait_until, umask, held):
    home = victim.home / f"state-{umask}-{held}" / "deep"
    base = victim.home / f"state-{umask}-{held}"
    victim.run(["mkdir", "-m", "755", str(base)])
    socket = f"dt-{uuid.uuid4().hex[:8]}"
    env = victim.environment(DDPTOP_HOME=str(home), DDPTOP_TMUX_SOCKET=socket)
    if held == "daemon":
        env["PATH"] = str(base)  # no tmux
    script = 'umask "$1"; shift; exec "$@"'
    command = f"umask > {base}/seen; /bin/sleep 1000"
    launch = ["launch", "-d", "--name", "job", "--", "/bin/sh", "-c", command]
    launched = victim.run(
        ["/bin/sh", "-c", script, "sh", umask, victim.python, "-m", "ddptop", *launch], env=env
    )
    assert launched.returncode == 0, launched.stderr
    assert ("tmux is not installed" in launched.stderr) == (held == "daemon")
    try:
        wait_until(lambda: (base / "seen").exists() and (base / "seen").stat().st_size)
        assert (base / "seen").read_text().strip() == umask  # the job's own is as it was
        wait_until(lambda: "running" in victim.ddptop("status", "--json", env=env).stdout)
        assert open_to_others(home) == []
    finally:
        stopped = victim.ddptop("kill", "job", env=env)
    assert stopped.returncode == 0, stopped.stderr
    assert open_to_others(home) == []


EACH_VERB = """
import contextlib, io, json, sys
from ddptop.__main__ import main
found = {}
for verb, arguments in json.loads(sys.argv[1]).items():
    sys.argv[1:] = arguments
    with contextlib.redirect_stderr(io.StringIO()) as said:
        found[verb] = [main(), said.getvalue()]
print(json.dumps(found))
"""


def test_another_users_state_folder_names_its_owner(attacker, victim):
    theirs = attacker.home / "state"
    attacker.run(["mkdir", "-p", "-m", "700", str(theirs)])
    answer = victim.run(
        [victim.python, "-c", EACH_VERB, json.dumps(VERBS)],
        env=victim.environment(DDPTOP_HOME=str(theirs)),
    )
    found = json.loads(answer.stdout)
    assert list(found) == list(VERBS)
    for verb, (status, said) in found.items():
        assert status == 2, verb
        assert f"is owned by {attacker.name} (mode 0700)" in said, verb
        assert "set DDPTOP_HOME to a directory of your own" in said, verb
        assert len(said.splitlines()) == 1, verb


def test_nothing_is_started_out_of_a_folder_that_another_user_owns(attacker, victim):
    shared = attacker.home / "shared"
    attacker.run(["mkdir", "-m", "1777", str(shared)])
    shared.chmod(0o1777)
    env = victim.environment(DDPTOP_HOME=str(shared))
    answer = victim.ddptop("launch", "-d", "--", "true", env=env)
    assert answer.returncode == 2
    assert (
        f"refusing to start anything from {shared}, which is owned by {attacker.name} (mode 1777)"
        in answer.stderr
    )
    assert list(shared.iterdir()) == []


def test_a_state_folder_that_others_may_write_is_closed_to_them(victim):
    home = victim.home / "open"
    victim.run(["mkdir", "-p", str(home / "runs")])
    for folder in (home, home / "runs"):
        folder.chmod(0o777)
    env = victim.environment(DDPTOP_HOME=str(home), PATH=str(home))
    answer = victim.ddptop("launch", "-d", "--name", "job", "--", "/bin/true", env=env)
    assert answer.returncode == 0, answer.stderr
    assert f"{home} was writable by other users (mode 0777)" in answer.stderr
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (home, home / "runs")] == [0o755] * 2
    assert victim.ddptop("wait", "job", env=env).returncode == 0


def owned_run(ddptop_home: Path) -> RunFolder:
    for place in (ddptop_home, ddptop_home / "runs"):
        place.mkdir(mode=0o700, exist_ok=True)
    folder = run_folder("train")
    folder.path.mkdir(mode=0o700)
    return folder


def as_link(folder: RunFolder) -> None:
    folder.path.rename(folder.path.with_name("elsewhere"))
    folder.path.symlink_to("elsewhere")


NOT_OWN = {
    "a link": as_link,
    "writable by others": lambda folder: folder.path.chmod(0o722),
    "another's": lambda folder: os.chown(folder.path, 65534, 65534),
    "below another's": lambda folder: os.chown(folder.path.parent, 65534, 65534),
    "in another's home": lambda folder: os.chown(folder.path.parent.parent, 65534, 65534),
}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("how", NOT_OWN)
def test_run_folder_is_own_only_if_no_other_user_controls_its_content(ddptop_home, how):
    folder = owned_run(ddptop_home)
    assert why_not_own(folder) is None
    NOT_OWN[how](folder)
    assert str(ddptop_home) in str(why_not_own(folder))
    with pytest.raises(UsageError, match="refusing to start anything from"):
        require_own_run(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("how", NOT_OWN)
def test_no_such_job_is_adopted(ddptop_home, how):
    gone = msgspec.structs.replace(procs.identify(os.getpid()), start_ticks=1)
    me = procs.identify(os.getpid())
    folder = put_job("train", {"state": "running", "guardian": gone, "agent": me})
    for place in (ddptop_home, ddptop_home / "runs", folder.path):
        place.chmod(0o700)
    assert read_job(folder).needs_guardian
    NOT_OWN[how](folder)
    assert not read_job(RunFolder(folder.path)).needs_guardian


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_users_run_folder_is_listed_and_not_deleted(ddptop_home):
    folder = put_job("train", {"state": "finished"})
    os.chown(folder.path, 65534, 65534)
    (view,) = read_all()[0]
    with pytest.raises(UsageError, match="is owned by nobody"):
        remove(view)
    assert folder.spec_file.exists()


def test_tmux_reads_its_configuration_from_the_package(ddptop_home):
    assert tmux_server.CONFIG.parent == Path(tmux_server.__file__).parent
    assert "default-shell" in tmux_server.CONFIG.read_text()


LOCKS = {
    "guardian": lambda: lock(run_folder("train").guardian_lock),
    "gpus": lambda: bounded.open_lock(runs_dir() / usage.LOCK_NAME),
}


@pytest.mark.parametrize("which", LOCKS)
@pytest.mark.parametrize("place", ["link", "pipe", "another's"])
def test_a_lock_is_a_file_of_this_user_and_no_link(ddptop_home, tmp_path, which, place):
    folder = owned_run(ddptop_home)
    path = folder.guardian_lock if which == "guardian" else runs_dir() / usage.LOCK_NAME
    target = tmp_path / "made"
    if place == "link":
        path.symlink_to(target)
    elif place == "pipe":
        os.mkfifo(path)
    elif os.getuid() == 0:
        path.touch()
        os.chown(path, 65534, 65534)
    else:
        pytest.skip("only root can give a file away")
    with pytest.raises(OSError):
        LOCKS[which]()
    assert not target.exists()
    with usage.taking(0.0) as had:
        assert had
    assert not target.exists()


READERS = {
    "interface.json": settings.recall,
    "config.toml": settings.read_settings,
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("place", ["pipe", "device", "nested"])
def test_settings_and_what_was_remembered_hold_nobody_up(
    ddptop_home, tmp_path, monkeypatch, what, place
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ddptop").mkdir(exist_ok=True)
    path = (ddptop_home if what == "interface.json" else tmp_path / "ddptop") / what
    path.parent.mkdir(exist_ok=True)
    if place == "pipe":
        os.mkfifo(path)
    elif place == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text('{"more": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with contextlib.suppress(UsageError):
        in_time(READERS[what])


def test_a_linked_config_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ddptop").mkdir()
    (tmp_path / "dotfile").write_text("[interface]\nmouse = false\n")
    (tmp_path / "ddptop" / "config.toml").symlink_to("../dotfile")
    assert settings.read_settings().interface.mouse is False


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_nothing_is_remembered_in_another_users_folder(ddptop_home):
    ddptop_home.mkdir(exist_ok=True)
    settings.remember(settings.Memory(theme="nord"))
    assert settings.recall().theme == "nord"
    os.chown(ddptop_home, 65534, 65534)
    settings.remember(settings.Memory())
    assert settings.recall().theme == "nord"


def test_a_directory_shared_on_purpose_is_refused_and_left_as_it_is(tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(UsageError, match="is shared with other users; set DDPTOP_HOME"):
        close_to_others(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
