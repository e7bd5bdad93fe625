"""A run folder that was damaged, or made by somebody who means harm: it troubles no other job.

Every view shows the healthy job beside it and names the bad folder in one line, within a time, and
`rm` deletes it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.cli import cli
from ddptop.sources.history import JobHistory
from tests.support.builders import put_job

from ddptop_runner.base import paths
from ddptop_runner.base.errors import DamagedFileError, DdptopError, UsageError
from ddptop_runner.base.paths import RunFolder, create_local_dir, run_folder
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobSource, JobView, is_locked, read_all, read_job
from ddptop_runner.jobs import commands
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import RANK, ddl

IN_TIME_S = 30.0


def in_time(action: Callable[[], object]) -> None:
    """Call it; fail where it blocks."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(IN_TIME_S)
    assert not thread.is_alive(), "it blocks"
    if raised:
        raise raised[0]


def as_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def as_link_to(target: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return damage


def as_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def as_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inner").mkdir(mode=0)


def as_bytes(data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    return damage


NESTED = b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
ANY_FILE = {
    "pipe": as_pipe,
    "device": as_link_to("/dev/zero"),
    "dangling": as_link_to("/nowhere"),
    "loop": as_link_to("job.json"),
    "sparse": as_sparse,
    "folder": as_folder,
    "empty": as_bytes(b""),
    "zeros": as_bytes(bytes(4096)),
    "nested": as_bytes(NESTED),
    "no UTF-8": as_bytes(b'{"job": "\xff\xfe"}'),
}

SPECS = {
    "host": "../../victim",
    "job": "../victim",
    "nproc": 10**12,
    "tmux_socket": "../../evil",
    "created_at": "9999-12-31T23:59:59+00:00",
    "schema": 10**30,
}


def changed(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture
def bad(ddptop_home: Path) -> RunFolder:
    """The run folder to be damaged; beside it one of a healthy job."""
    for name in ("good", "bad"):
        put_job(name, {"state": "finished"})
    folder = run_folder("bad")
    log = folder.log_file(0, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("a line\n")
    return folder


def told(*words: str) -> tuple[str, list[str]]:
    """What a command prints: all of stdout, and the lines of stderr."""
    command = cli.commands[words[0]]
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command.main([*words[1:]], standalone_mode=False)
        except DdptopError as error:
            err.write(f"{error}\n")
        out.flush()
    return out.buffer.getvalue().decode("utf-8", "replace"), err.getvalue().splitlines()


def views_show_the_good_one() -> list[str]:
    """What `ls` says on stderr, once every view has been asked."""
    shown, said = told("ls", "--all")
    assert "good" in shown
    listed = json.loads(told("ls", "--all", "--json")[0])
    assert "good" in [row["job"] for row in listed["jobs"]]
    source = JobSource()
    for view in source.read():
        read_events(view)
    named = [error.job for error in source.damaged]
    assert named == [row["job"] for row in listed.get("damaged", [])]
    assert "finished" in told("status", "good")[0]
    for verb in ("status", "logs", "events", "stacks"):
        told(verb, "bad")
    return said


def read_events(view: JobView) -> None:
    try:
        JobHistory(view.folder.history_db).events(100)
    except DdptopError:
        pass


@pytest.mark.parametrize(
    ("what", "how"),
    [
        (what, how)
        for what in ("job.json", "nodes", "history.db", "history.db-wal", "log")
        for how in ANY_FILE
        if (what, how) != ("log", "sparse")  # a log may be long
    ],
)
def test_bad_file_affects_no_other_job(bad, what, how):
    path = {
        "nodes": bad.node_file(procs.host_name()),
        "log": bad.log_file(0, 0),
    }.get(what, bad.path / what)
    ANY_FILE[how](path)
    said: list[str] = []
    in_time(lambda: said.extend(views_show_the_good_one()))
    if what == "job.json":
        assert len(said) == 1 and "bad/job.json" in said[0] and "ddptop rm bad" in said[0]
    in_time(lambda: commands_rm("bad"))
    assert not bad.path.exists() and run_folder("good").path.exists()


def commands_rm(name: str) -> None:
    from ddptop.commands.control import run_rm

    assert run_rm([name]) == 0


@pytest.mark.parametrize("key", SPECS)
def test_what_leads_elsewhere_or_cannot_be_reckoned_with_is_damage(bad, key):
    changed(bad.spec_file, **{key: SPECS[key]})
    said: list[str] = []
    in_time(lambda: said.extend(views_show_the_good_one()))
    assert len(said) == 1 and "bad" in said[0]


def test_a_job_that_goes_by_anothers_name_is_not_listed(bad):
    changed(bad.spec_file, job="good")
    views, damaged = read_all()
    assert [view.folder.job for view in views] == ["good"]
    assert [error.job for error in damaged] == ["bad"]


@pytest.mark.parametrize("key", ["ts", "started_at", "ended_at"])
def test_times_of_another_age_are_damage(bad, key):
    changed(bad.node_file(procs.host_name()), **{key: "9999-12-31T23:59:59Z"})
    view = read_job(bad)
    assert view.snapshot is not None and "damaged" in view.snapshot.alerts[0].message


RECURSIVE = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT
i AS seq, 1.0 AS ts, 'x' AS type, 0 AS attempt, 0 AS rank, 0 AS pid, 0 AS exit_code,
NULL AS signal, 'm' AS message, NULL AS evidence FROM n
"""


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.db"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for statement in ddl():
            db.execute(statement)
    db.close()
    return path


def altered(path: Path, *statements: str) -> HistoryReader:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()
    return HistoryReader(path)


def test_a_view_in_place_of_the_events_is_refused(history):
    reader = altered(history, "DROP TABLE events", f"CREATE VIEW events AS {RECURSIVE}")
    with pytest.raises(DamagedFileError, match="unexpected database objects"):
        in_time(reader.events)


def with_schema(path: Path, table: str, sql: str) -> HistoryReader:
    """`sql` made the definition of a table, though its file says that it is one."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema=ON")
    db.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, table))
    db.commit()
    db.close()
    return HistoryReader(path)


GENERATED = "CREATE TABLE meta (key TEXT PRIMARY KEY, value{}GENERATED ALWAYS AS({}) VIRTUAL)"
ENDLESS_PATTERN = "'1' || (key LIKE '%a%a%a%a%a%a%a%a%a%a%a%b')"
PROGRAMS = {
    "memory": GENERATED.format(" ", "hex(zeroblob(450000000))"),
    "time": GENERATED.format("\t", ENDLESS_PATTERN),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_table_that_computes_is_refused_before_it_is_asked(history, what):
    reader = with_schema(history, "meta", PROGRAMS[what])
    with pytest.raises(DamagedFileError, match="unexpected database objects"):
        in_time(reader.events)
    with pytest.raises(DamagedFileError, match="unexpected database objects"):
        in_time(lambda: reader.series(RANK, "loss", 0, 9e9, 10))


@pytest.mark.parametrize("index", ["(hex(type))", "(type) WHERE length(hex(message)) > 1"])
def test_an_index_that_computes_is_refused(history, index):
    with pytest.raises(DamagedFileError, match="unexpected database objects"):
        altered(history, f"CREATE INDEX i ON events {index}").events()


def test_a_newer_ddptops_column_is_no_damage(history):
    reader = altered(
        history,
        "ALTER TABLE rank_1s ADD COLUMN newer REAL",
        "INSERT INTO events (ts, type, message, number) VALUES (1e9, 'failed', 'x', 1)",
    )
    assert len(reader.events()) == 1


def test_texts_of_any_length_cost_little_memory(history):
    write = (  # in a process of its own: what reads histories limits SQLite's memory for good
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
        'db.execute("INSERT INTO events (number, ts, type, message)'
        " VALUES (1, 1e9, 'failed', CAST(zeroblob(150000000) AS TEXT))\"); db.commit()"
    )
    subprocess.run([sys.executable, "-c", write, str(history)], check=True)
    script = (
        "import resource, sys; from pathlib import Path;"
        "from ddptop_runner.store.history_reader import HistoryReader;"
        "from ddptop_runner.base.errors import DdptopError;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: HistoryReader(Path(sys.argv[1])).events()\n"
        "except DdptopError: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(history)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 64 << 10, "KiB"


NEXT = "(SELECT coalesce(max(number), 0) + 1 FROM events)"


def test_events_without_end_are_damage(history, monkeypatch):
    monkeypatch.setattr("ddptop_runner.store.history_reader.EVENTS_BYTES", 100)
    row = (
        "INSERT INTO events (ts, type, message, number) VALUES (1e9, 'failed', 'of twenty-five"
        f" characters', {NEXT})"
    )
    assert len(altered(history, *[row] * 3).events()) == 3
    with pytest.raises(DamagedFileError, match="too much text"):
        altered(history, row).events()


def test_points_without_end_are_damage(history, monkeypatch):
    monkeypatch.setattr("ddptop_runner.store.history_reader.MOST_POINTS", 3)
    rows = [f"INSERT INTO rank_1s (t, rank, loss_last) VALUES (1000, {rank}, 1)" for rank in "0123"]
    reader = altered(history, *rows[:3])
    assert len(reader.series(RANK, "step", 0, 9e9, 10)) == 0
    altered(history, rows[3])
    with pytest.raises(DamagedFileError, match="too many ranks"):
        reader.series(RANK, "step", 0, 9e9, 10)


LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, lambda *_: None)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("what", ["history.db", "job.json", "guardian.lock"])
def test_lease_on_another_users_file_blocks_no_reader(ddptop_home, attacker, what):
    folder = put_job("train", {"state": "finished"})
    with contextlib.closing(sqlite3.connect(folder.path / "history.db")) as db:
        for statement in ddl():
            db.execute(statement)
        db.commit()
    folder.guardian_lock.touch()
    for path in (ddptop_home, folder.path.parent, folder.path):
        path.chmod(0o755)
    os.chown(folder.path / what, attacker.uid, attacker.gid)
    assert HistoryReader(folder.path / "history.db").events() == []
    holder = attacker.popen(
        [attacker.python, "-c", LEASE, str(folder.path / what)], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        if "held" not in holder.stdout.readline():
            pytest.skip("this file system has no leases, or the folder is out of reach")
        action = {
            "history.db": lambda: read_events(read_job(folder)),
            "job.json": read_all,
            "guardian.lock": lambda: is_locked(folder),
        }[what]
        in_time(action)
    finally:
        holder.kill()
        holder.communicate()


def test_what_still_takes_for_ever_is_given_up(history, monkeypatch):
    monkeypatch.setattr("ddptop_runner.store.history_reader.MOST_CPU_S", 0.2)
    with pytest.raises(DdptopError, match="interrupted"), HistoryReader(history).open() as db:
        db.execute(f"SELECT count(*) FROM ({RECURSIVE})").fetchone()


@pytest.mark.parametrize("ts", ["9e99", "'soon'", "-1e18", "2.6e11"])
def test_an_event_without_a_time_is_damage(history, ts):
    reader = altered(
        history, f"INSERT INTO events (ts, type, message, number) VALUES ({ts}, 'failed', 'x', 1)"
    )
    with pytest.raises(DamagedFileError):
        reader.events()


# --- rm ----------------------------------------------------------------------------------------


def test_rm_deletes_what_is_no_job_and_nothing_of_ddptops_own(ddptop_home):
    runs = ddptop_home / "runs"
    runs.mkdir()
    (runs / ".gpus.lock").touch()
    (runs / "file").touch()
    (runs / "link").symlink_to("/etc")
    (runs / "empty").mkdir()
    with pytest.raises(UsageError, match="may be starting"):
        commands_rm("empty")
    os.utime(runs / "empty", (0, 0))
    for name in ("file", "link", "empty"):
        commands_rm(name)
    for name in (".gpus.lock", "..", "../runs"):
        with pytest.raises(DdptopError, match="no job named"):
            commands_rm(name)
    assert sorted(path.name for path in runs.iterdir()) == [".gpus.lock"]
    assert Path("/etc/passwd").exists()


def test_rm_follows_no_pointer_to_another_jobs_files(ddptop_home, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "LOCAL_DISK", tmp_path)
    victim, bad = (put_job(name, {"state": "finished"}) for name in "vb")
    kept = create_local_dir(victim)
    (kept / "history.db").touch()
    shutil.copy(victim.local_pointer, bad.local_pointer)
    assert RunFolder(bad.path).live_dir == bad.path
    commands_rm("b")
    assert (kept / "history.db").exists()
    commands_rm("v")
    assert not kept.exists(), "its own pointer is followed"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_pointer_of_another_users_making_leads_nowhere(ddptop_home, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "LOCAL_DISK", tmp_path)
    folder = put_job("train", {"state": "finished"})
    create_local_dir(folder)
    os.chown(folder.local_pointer, 65534, 65534)
    assert RunFolder(folder.path).live_dir == folder.path


# --- jobs of a container that is gone ----------------------------------------------------------


def put_gone() -> RunFolder:
    """The run folder of a job that ran in a container, an hour after that was removed."""
    folder = put_job("web", {"pid_ns": 1, "boot_id": procs.boot_id()}, host="c0ffee")
    folder.guardian_lock.touch()
    for path in folder.path.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 3600,) * 2)
    return folder


def test_a_job_of_a_container_that_is_gone_is_lost_and_removed(ddptop_home):
    folder = put_gone()
    view = read_job(folder)
    assert (view.state, view.is_abandoned, view.on_other_host) == ("lost", True, False)
    said = " ".join(told("status", "web")[0].split())
    assert "ddptop restart web" in said and "ddptop rm web" in said
    with pytest.raises(UsageError, match="has ended"):
        commands.stop(view)
    commands_rm("web")
    assert not folder.path.exists()


@pytest.mark.parametrize("sign", ["guardian", "supervisor", "log"])
def test_one_that_may_be_alive_is_not_touched(ddptop_home, sign):
    from ddptop_runner.base.files import lock

    folder = put_gone()
    held = None
    if sign == "log":
        folder.log_file(0, 0).parent.mkdir(parents=True)
        folder.log_file(0, 0).touch()
    else:
        held = lock(folder.guardian_lock if sign == "guardian" else folder.supervisor_lock)
    view = read_job(folder)
    assert (view.state, view.on_other_host) == ("running", True)
    with pytest.raises(UsageError, match="stop it there first"):
        commands.remove(view, force=True)
    assert folder.path.exists()
    if held is not None:
        os.close(held)


def test_what_cannot_be_proven_takes_force_and_every_refusal_says_so(ddptop_home, monkeypatch):
    folder = put_gone()
    monkeypatch.setattr("ddptop_runner.job.registry.shared_file_system", lambda path: "nfs")
    view = read_job(folder)
    assert (view.state, view.on_other_host) == ("running", True)
    for refused in (commands.stop, commands.restart_group, commands.remove):
        with pytest.raises(UsageError, match="ddptop rm --force web"):
            refused(view)
    assert told("rm", "--force", "web") == ("", [])
    assert not folder.path.exists()


def test_force_deletes_no_job_that_lives_here(ddptop_home):
    me = procs.identify(os.getpid())
    put_job("web", {"guardian": me, "supervisor": me})
    with pytest.raises(UsageError, match="stop it first"):
        commands.remove(read_job(run_folder("web")), force=True)
