"""Before a job starts on hosts: their answers over a real ssh, and what refuses the start."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cluster.jobs import Job

RUNNER = Path(__file__).parents[3] / "runner"
SAY = """\
import os, pathlib, socket, sys
names = ("TOLD", "MINE", "CUDA_VISIBLE_DEVICES")
words = [socket.gethostname(), os.getcwd(), *(str(os.environ.get(name)) for name in names)]
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text("|".join(words))
"""
LAUNCH = ["launch", "-d", "--nproc", "1"]


@pytest.fixture(scope="module")
def script(head):
    """A script that must never run."""
    file = head.folder / "train.py"
    file.write_text("raise SystemExit('it must never run')")
    return file


@pytest.fixture
def refused(head, hosts, script, wait_until):
    """`refused("--hosts", "h1,h2")`: the last line on stderr; nothing is left on any machine."""

    def run(*options: str, status: int = 2, **environment: str) -> str:
        done = head.cli(*LAUNCH, *options, script.name, **environment)
        assert done.returncode == status, done.stderr
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        assert not [*(head.home / "runs").glob("[!.]*")]
        wait_until(lambda: not head.pids(), 20, what="nothing left here")
        for host in hosts.hosts.values():
            wait_until(lambda host=host: not host.described(), 20, what=f"nothing on {host.name}")
        return done.stderr.splitlines()[-1]

    return run


@pytest.fixture
def hidden(hosts):
    """`hidden("h2", path)`: covers it there with an empty folder or another file's content."""
    done = []

    def hide(name: str, path: Path, instead: Path | None = None) -> None:
        how = ["-t", "tmpfs", "tmpfs"] if instead is None else ["--bind", str(instead)]
        hosts.hosts[name].run("mount", *how, str(path))
        done.append((name, path))

    yield hide
    for name, path in done:
        if hosts.hosts[name].init is not None:
            hosts.hosts[name].run("umount", str(path))


def test_the_plan_names_the_nodes_and_their_addresses(head, hosts, script):
    done = head.cli(*LAUNCH, "--hosts", "h2,h1", "--nodes", "1:2", "--dry-run", script.name)
    assert done.returncode == 0, done.stderr
    assert "machines:      2 machines (1 is enough): h2, h1" in done.stdout
    for name in ("h1", "h2"):
        assert f"{name}: 1 rank on CPU, at {hosts.hosts[name].address}" in done.stdout
    table = done.stderr.splitlines()
    assert [line.split()[:2] for line in table[:3]] == [
        ["HOST", "STATE"],
        ["h2", "ready"],
        ["h1", "ready"],
    ]


def test_unknown_host(refused):
    line = refused("--hosts", "h1,nosuch")
    assert line == ("ddptop: nosuch: unknown host; check the spelling, or add it to ~/.ssh/config")


def test_a_host_that_is_down(hosts, refused):
    hosts.hosts["h3"].cut()
    line = refused("--hosts", "h1,h3")
    assert line.startswith("ddptop: h3: it does not respond; check that it is up"), line


def test_host_with_a_changed_key(hosts, refused, tmp_path):
    known = tmp_path / "known_hosts"
    other = (hosts.hosts["h2"].folder / "host_key.pub").read_text()
    known.write_text(f"{hosts.hosts['h1'].address} {other}")
    ssh = f"ssh -F {hosts.keys}/ssh_config -o UserKnownHostsFile={known}"
    line = refused("--hosts", "h1", DDPTOP_SSH=ssh)
    assert "h1: its host key has changed; if it was reinstalled, run the ssh-keygen" in line
    known.write_text("")
    line = refused("--hosts", "h1", DDPTOP_SSH=ssh)
    assert "h1: its host key is not known yet; run `ssh h1 true` once" in line


def test_host_without_the_script_and_one_with_a_different_script(hidden, refused, script, tmp_path):
    other = tmp_path / "train.py"
    other.write_text("print('older')")
    hidden("h2", script, other)
    folder = f"{script.parent}/"
    line = refused("--hosts", "h1,h2")
    assert line == (
        f"ddptop: h2: train.py in {script.parent} is not the same as here; copy it:"
        f" rsync -a {folder} h2:{folder},"
        " or pass --force"
    )
    hidden("h3", script.parent)
    line = refused("--hosts", "h1,h3")
    assert f"h3: no script train.py in {script.parent} there; copy it: rsync" in line


def test_host_that_the_others_cannot_reach(hosts, refused):
    rule = ["ip", "route", "add", "blackhole", f"{hosts.hosts['h3'].address}/32"]
    hosts.hosts["h2"].run(*rule)
    try:
        line = refused("--hosts", "h1,h2,h3")
    finally:
        rule[2] = "del"
        hosts.hosts["h2"].run(*rule)
    # whichever is disconnected, neither reaches the other
    assert "h2 cannot connect to it at" in line or "h3 cannot connect to it at" in line
    assert "check the network and the firewall between them" in line


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *at) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, at);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
    at->tv_sec -= 7200;
  return failed;
}
"""


@pytest.fixture
def behind(hosts, tmp_path):
    """h2, whose clock is two hours behind."""
    (tmp_path / "clock.c").write_text(CLOCK)
    library = tmp_path / "clock.so"
    command = ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"]
    subprocess.run(list(map(str, command)), check=True)
    h2 = hosts.hosts["h2"]
    h2.die()
    h2.start(LD_PRELOAD=str(library))
    yield h2
    h2.die()
    del h2.environment["LD_PRELOAD"]


def test_a_clock_that_is_off_is_reported_and_refuses_nothing(behind, head, trainer, wait_until):
    arguments = [str(trainer.script), str(trainer.folder), "--save-every", "10"]
    done = head.cli(*LAUNCH, "--hosts", "h1,h2", "--name", "off", "--gpus", "none", *arguments)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stderr.splitlines()]
    assert ["h1", "ready"] in rows and ["h2", "ready"] in rows
    assert "h2: its clock is 7200" in done.stderr and "behind; synchronize it" in done.stderr
    job = Job(head, "off", trainer)
    wait_until(lambda: job.trains(["h1", "h2"]))
    behind.kill("rank", job.name)
    wait_until(lambda: job.trains(["h1", "h2"], attempt=1), 60)
    assert job.status()["state"] in ("starting", "running")
    assert "Rank 1 " in job.last("failure")
    assert {one["unknown_since"] for one in job.status()["nodes"]} == {None}
    assert head.cli("stop", "off").returncode == 0
    wait_until(lambda: not behind.of("rank"), 20)
    wait_until(lambda: head.cli("rm", "off").returncode == 0, 20)


def test_ctrl_c_says_that_a_job_that_exists_keeps_running(
    hosts, head, trainer, tmp_path, wait_until
):
    late = tmp_path / "ssh"
    late.write_text('#!/bin/sh\ncase "$*" in *" -- h2 "*) sleep 4;; esac\nexec ssh "$@"\n')
    late.chmod(0o755)
    words = [*LAUNCH, "--hosts", "h1,h2", "--name", "kept", "--gpus", "none"]
    launching = subprocess.Popen(
        [sys.executable, "-m", "ddptop", *words, str(trainer.script), str(trainer.folder)],
        env=head.environment | {"DDPTOP_SSH": str(late)},
        cwd=head.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: hosts.hosts["h1"].of("supervisor", "kept"), what="it exists")
    launching.send_signal(signal.SIGINT)
    _, said = launching.communicate(timeout=20)
    assert launching.returncode == 130
    assert said.splitlines()[-1].startswith(
        "ddptop: kept keeps running; attach with `ddptop attach kept`"
    )
    job = Job(head, "kept", trainer)
    wait_until(lambda: job.trains(["h1", "h2"]))
    job.stop()
    wait_until(lambda: head.cli("rm", "kept").returncode == 0, 20)


def test_setup_host_installs_ddptop_and_doctor_confirms_it(head, hosts, hidden, refused):
    """The host reaches only the other hosts, and has neither a checkout nor an installed ddptop."""
    hidden("h3", RUNNER)
    line = refused("--hosts", "h1,h3")
    assert line == "ddptop: h3: ddptop is not installed; run ddptop setup-host h3"
    done = head.cli("setup-host", "h3,nosuch", "--python", sys.executable)
    assert done.returncode == 1
    assert f"h3: ddptop 0.1.0 installed in {hosts.hosts['h3'].folder}/home/.local/" in done.stdout
    assert done.stderr.startswith("ddptop: nosuch: unknown host; ")
    done = head.cli("doctor", "--hosts", "h1,h3", "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert [one["host"] for one in report["hosts"]] == ["h1", "h3"]
    for one in report["hosts"]:
        checks = {check["id"]: check["status"] for check in one["checks"]}
        assert checks["together"] == "ok"
        assert checks["python"] == "ok"
    shutil.rmtree(hosts.hosts["h3"].folder / "home" / ".local")


@pytest.mark.torch
def test_job_gets_the_shells_variables_on_all_hosts_and_rm_leaves_nothing(head, hosts, tmp_path):
    (head.folder / "say.py").write_text(SAY)
    words = [*LAUNCH, "--hosts", "h1,h2", "--name", "say", "--env", "MINE=1", "say.py", tmp_path]
    done = head.cli(*map(str, words), TOLD="by the shell", CUDA_VISIBLE_DEVICES="7")
    assert (done.returncode, done.stdout) == (0, "say\n"), done.stderr
    assert head.cli("wait", "say").returncode == 0, head.cli("events", "say").stdout
    for rank, host in enumerate(("h1", "h2")):
        said = (tmp_path / str(rank)).read_text().split("|")
        assert said == [host, str(head.folder), "by the shell", "1", "None"]
    members = [hosts.hosts[name].home / "members" for name in ("h1", "h2")]
    parts = [list(folder.glob("say@*")) for folder in members]  # other tests use the same hosts
    assert list(map(len, parts)) == [1, 1]
    hosts.hosts["h2"].die()
    done = head.cli("rm", "say")
    assert done.returncode == 0
    assert done.stderr.startswith("ddptop: say was deleted, but its files remain on h2 (the conn")
    assert not parts[0][0].exists()
    shutil.rmtree(parts[1][0])


@pytest.mark.torch
def test_the_check_measures_every_rank_and_names_the_broken_machine(
    head, hosts, hidden, refused, script, tmp_path
):
    done = head.cli(*LAUNCH, "--hosts", "h1,h2", "--check", "--dry-run", script.name)
    assert done.returncode == 0, done.stderr
    assert "--check: 2 ranks measured, matrix product" in done.stderr
    assert "slowest link" in done.stderr
    broken = tmp_path / "check.py"
    broken.write_text("raise RuntimeError('CUDA error: uncorrectable ECC error')")
    hidden("h2", RUNNER / "ddptop_runner" / "agent" / "check.py", broken)
    line = refused("--hosts", "h1,h2", "--check")
    assert line == (
        "ddptop: h2: rank 1 failed on its own: RuntimeError: CUDA error: uncorrectable ECC error;"
        " leave it out of --hosts until it is repaired"
    )
