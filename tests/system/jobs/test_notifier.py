"""Messages leave whatever dies, and show no secret."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.real_jobs import Job

from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs

pytestmark = [pytest.mark.torch, pytest.mark.tmux]
SECRET = "s3cr3t"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a webhook gets that `DDPTOP_TEST_HOOK` names."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    urls = Path(os.environ["XDG_CONFIG_HOME"]) / "ddptop" / "notify-urls"
    urls.parent.mkdir(parents=True)
    urls.touch(0o600)
    urls.write_text(f"http://127.0.0.1:{server.server_port}/{SECRET}\n")
    yield got
    server.shutdown()
    server.server_close()


def kinds(got: list[dict[str, Any]]) -> list[str]:
    return [notice["kind"] for one in got for notice in one["notices"]]


def notifiers(job: Job) -> list[int]:
    words = ["ddptop.export.notifier", str(job.folder())]
    return [pid for pid in procs.all_pids() if own_words(procs.argv(pid)) == words]


def test_messages_leave_after_everything_but_the_guardian_was_killed(
    ddptop_home, hook, launch, wait_until
):
    job = launch(10_000, 0.02)
    wait_until(job.trains, what="training")
    first = wait_until(lambda: notifiers(job), what="a notifier")
    processes = job.processes()
    for pid in [*first, processes["supervisor"], *(r["pid"] for r in job.status()["ranks"])]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "restarted" in kinds(hook), what="the message on the restart")
    assert notifiers(job) != first

    # nothing shows the URL
    names = [path for path in job.folder().rglob("*") if path.is_file()]
    shown = [path.name for path in names if SECRET.encode() in path.read_bytes()]
    assert shown == ["notify-urls"]
    assert (job.folder() / "notify-urls").stat().st_mode & 0o777 == 0o600
    assert not any(SECRET in word for pid in procs.all_pids() for word in procs.argv(pid))

    job.cli("kill", job.name)
    wait_until(lambda: not notifiers(job), what="the notifier to exit")


def test_a_job_that_nobody_wants_to_hear_of_has_no_notifier(launch_command, wait_until):
    job = launch_command(["sleep", "600"])
    wait_until(lambda: job.status()["launcher"], what="its start")
    assert notifiers(job) == []
    assert job.cli("kill", job.name).returncode == 0


def test_a_failed_job_is_reported_with_its_hook(ddptop_home, hook, launch_script, wait_until):
    config = Path(os.environ["XDG_CONFIG_HOME"]) / "ddptop" / "config.toml"
    config.write_text(f'[hooks]\non_failed = "cat > {ddptop_home}/hooked"\n')
    job = launch_script("raise ValueError('bad')\n", "--max-restarts", "0")
    wait_until(lambda: "failed" in kinds(hook), what="the message")
    assert "ValueError: bad" in hook[-1]["body"]
    assert hook[-1]["title"].startswith(f"{job.name} failed on ")
    assert json.loads((ddptop_home / "hooked").read_text())["notices"][0]["kind"] == "failed"
    wait_until(lambda: not notifiers(job), what="the notifier to exit")
