"""A spare that became a rank is like a rank that was started as usual."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from ddptop_runner.host.handover import PROBE_DIR, SPARE_MAIN

pytestmark = pytest.mark.torch

SELF_PORTRAIT = """
import atexit, json, multiprocessing, os, pickle, signal, sys, threading
class Mine: pass
def told(): print("at exit")
atexit.register(told)
spawned = None
if sys.argv[-1] == "spawn" and __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=print, args=("of a child",))
    process.start()
    process.join()
    spawned = process.exitcode
if __name__ == "__main__":
    main = sys.modules["__main__"]
    print(json.dumps({
        "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path,
        "is_main": main.__dict__ is globals(), "package": __package__,
        "spec": getattr(__spec__, "name", None),
        "builtins": __builtins__ is sys.modules["builtins"], "spawned": spawned,
        "pickled": pickle.loads(pickle.dumps(Mine)) is Mine, "cwd": os.getcwd(),
        "isatty": sys.stdin.isatty(), "stdin": sys.stdin.read(),
        "threads": threading.active_count(),
        "encoding": sys.stdout.encoding, "write_through": sys.stdout.write_through,
        "sigint": str(signal.getsignal(signal.SIGINT)), "orphan": os.getpgid(0) == os.getpid(),
        "env": {k: v for k, v in os.environ.items() if k not in ("_", "SHLVL", "OLDPWD", "PWD",
                "DDPTOP_PROBE_OWNER")},
        "probe": "_ddptop_probe" in sys.modules, "file_of_main": getattr(main, "__file__", None),
    }, sort_keys=True))
    if "raise" in sys.argv:
        raise ValueError("on purpose")
    if "exit" in sys.argv:
        sys.exit(7)
"""


@pytest.fixture(scope="module")
def spares() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("spares", SPARE_MAIN.with_name("spares.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_usual(argv: list[str], env: dict[str, str], log: Path, cwd: Path) -> int:
    shell = ["/bin/sh", "-c", 'exec "$@" >>"$DDPTOP_LOG" 2>&1', "ddptop-rank", sys.executable, "-u"]
    return subprocess.run(
        [*shell, *argv],
        env={**env, "DDPTOP_LOG": os.fspath(log)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        cwd=cwd,
        check=False,
    ).returncode


def as_spare(
    spares: types.ModuleType, argv: list[str], env: dict[str, str], log: Path, cwd: Path
) -> int:
    before = Path.cwd()
    os.chdir(cwd)
    try:
        kept = spares.Spares(sys.executable, str(PROBE_DIR / "sitecustomize.py"))
        kept._replenish(1)
    finally:
        os.chdir(before)
    [pid] = kept.pids()
    env = {**env, "DDPTOP_LOG": os.fspath(log)}
    process = kept.take(argv, env, os.fspath(log))
    assert process.pid == pid
    assert kept.take(argv, env, os.fspath(log)) is None
    code: int = process.wait(60)
    return code


@pytest.mark.parametrize("how", ["plain", "spawn", "raise", "exit", "module"])
def test_a_spare_is_a_rank_like_any_other(
    spares: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = tmp_path / "pkg"
    folder.mkdir()
    (folder / "train.py").write_text(SELF_PORTRAIT)
    (folder / "__init__.py").write_text("")
    argv = ["-m", "pkg.train"] if how == "module" else ["pkg/train.py"]
    argv += ["--lr", "ü \\udcff"[:3], how]
    for name in [name for name in os.environ if name.startswith("DDPTOP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path / "theirs"))
    inherited = dict(os.environ)
    env = {
        **inherited,
        "PYTHONPATH": os.pathsep.join([os.fspath(PROBE_DIR), inherited["PYTHONPATH"]]),
        "DDPTOP_JOB_ID": "spare@1",
        "DDPTOP_PROBE_SOCK": os.fspath(tmp_path / "none.sock"),
        "RANK": "1",
    }
    logs = tmp_path / "usual.log", tmp_path / "spare.log"
    for log in logs:
        log.write_text("from before\n")
    code = as_usual(argv, env, logs[0], tmp_path)
    assert code == {"raise": 1, "exit": 7}.get(how, 0)
    assert as_spare(spares, argv, env, logs[1], tmp_path) == code
    usual, spare = (log.read_text().replace(os.fspath(log), "LOG") for log in logs)
    portraits = [
        json.loads(next(x for x in t.splitlines() if x[:1] == "{")) for t in (usual, spare)
    ]
    assert portraits[1] == portraits[0]
    assert portraits[0]["probe"] is True
    assert portraits[0]["env"]["RANK"] == "1"
    assert spare == usual


def test_a_spare_leaves_with_its_agent(spares: types.ModuleType) -> None:
    kept = spares.Spares(sys.executable, None)
    kept._replenish(2)
    kept._replenish(2)
    assert len(kept.pids()) == 2
    waiting = list(kept._waiting)
    for spare in waiting:
        spare.stdin.close()
    assert [spare.wait(60) for spare in waiting] == [0, 0]
    assert kept.pids() == []
    assert kept.take(["x.py"], {}, "/dev/null") is None
