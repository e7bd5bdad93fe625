"""Links to several hosts at once, whose ssh is a script: noise, delays, and failures."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ddptop_runner.base.errors import UsageError
from ddptop_runner.host import handover
from ddptop_runner.launch import preflight, survey
from ddptop_runner.launch.readiness import Wanted
from ddptop_runner.launch.request import parse_hosts
from ddptop_runner.version import __version__

SSH = """\
import json, os, sys, time
host = sys.argv[-2]
def out(**line):
    print(json.dumps(line), flush=True)
if host == "nologin":
    sys.stderr.write("nologin: Permission denied (publickey,password).\\n")
    sys.exit(255)
if host == "gone":
    sys.stderr.write("ssh: connect to host gone port 22: No route to host\\n")
    sys.exit(255)
if host == "bare":
    sys.stderr.write("ddptop-node: not installed\\n")
    sys.exit(127)
if host == "silent":
    time.sleep(100)
if host == "endless":
    while True:
        sys.stdout.write("x" * 65536)
if host == "noisy":
    print("Welcome!\\n{not json}\\n{}")
    sys.stderr.write("This system is for authorized use only.\\n")
if host == "mad":
    print("[" * 100000)
def reply(**more):
    out(type="answer", id=order["id"], reply=more)
boot = None if host == "bootless" else host
out(type="hello", ddptop="0.0.1" if host == "old" else VERSION, host=host, boot_id=boot,
    boottime_s=1.0, now="2026-11-22T00:00:00Z")
if host == "dies":
    sys.exit(1)
for line in sys.stdin:
    order = json.loads(line)
    question = order["request"]["question"]
    asked = question["type"]
    if host == "refuses":
        reply(type="refused", error="the disk\\nis full", hint="free some space")
    elif asked == "facts" and host in ("old", "same"):
        reply(type="found", data={"something": "else"})
    elif asked == "facts":
        out(type="event", event={})
        reply(type="found", data={
            "ddptop": VERSION, "command": ["node"], "now_s": time.time() + 5,
            "python": question["python"], "torch": "2.13.0", "python_version": "3.11",
            "script_digest": "aa", "addresses": ["10.0.0.1"],
            "ports": [20001, 20002], "nonce": host})
    elif asked == "reach":
        targets = question["targets"]
        reply(type="found",
            data={"reached": {one["host"]: one["addresses"] for one in targets}})
"""
WANTED = Wanted(
    target="t.py",
    kind="script",
    cwd="/w",
    python="/p",
    nproc=1,
    script_digest="aa",
)


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    script = tmp_path / "ssh.py"
    script.write_text(SSH.replace("VERSION", repr(__version__)))
    monkeypatch.setenv("DDPTOP_SSH", f"{sys.executable} -S {script}")


def collect(hosts, limit_s=20.0, monkeypatch=None):
    if monkeypatch is not None:
        monkeypatch.setattr(survey, "LIMIT_S", limit_s)
    with survey.Survey(parse_hosts(hosts)) as asked:
        judged = asked.collect(WANTED, None, {})
        return judged, asked


def test_hosts_that_answer_become_nodes_whatever_their_login_shells_print(fake_ssh):
    judged, asked = collect("a,noisy,mad")
    assert judged.refusals == []
    assert [node.host for node in judged.nodes] == ["a", "noisy", "mad"]
    assert [round(one.clock_offset_s) for one in asked.found.values()] == [5, 5, 5]
    assert "a: its clock is 5.0 s ahead" in str(judged.notes[0])


def test_each_unresponsive_host_is_refused_with_the_others(fake_ssh):
    judged, _ = collect("a,nologin,gone,bare,old,same,refuses,dies,endless")
    assert judged.nodes == []
    said = {refusal.hosts[0]: str(refusal) for refusal in judged.refusals}
    assert set(said) == {
        *("nologin", "gone", "bare", "old", "same", "refuses", "dies", "endless"),
    }
    assert said["endless"].startswith("endless: its answer is not ddptop's; ")
    assert said["same"] == (
        f"same: the answer of ddptop {__version__} there cannot be read; run ddptop setup-host same"
    )
    assert "ssh-copy-id nologin" in said["nologin"]
    assert "it does not respond" in said["gone"]
    assert said["bare"].endswith("run ddptop setup-host bare")
    assert said["old"] == (
        f"old: ddptop 0.0.1 is installed there, but {__version__} here; run ddptop setup-host old"
    )
    assert said["refuses"] == "refuses: the disk is full; free some space"
    assert "exit status 1" in said["dies"]


def test_all_hosts_together_take_no_longer_than_one_that_never_answers(fake_ssh, monkeypatch):
    started_s = time.monotonic()
    link_limit_s = 1.5
    monkeypatch.setattr(survey.HostLink.__init__, "__defaults__", (link_limit_s, None))
    judged, asked = collect("a,silent,endless")
    assert time.monotonic() - started_s < 10
    said = {refusal.hosts[0]: refusal.problem for refusal in judged.refusals}
    assert said["silent"] == "no response within 1.5 s"
    assert set(said) == {"silent", "endless"}
    assert all(link._process.poll() is not None for link in asked.links.values())


# --- what a host answers --------------------------------------------------------------------------


def test_a_host_describes_itself(tmp_path, ddptop_home):
    (tmp_path / "train.py").write_text("1")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").write_text("2")
    question = {
        "type": "facts",
        "kind": "script",
        "target": "train.py",
        "cwd": str(tmp_path),
        "python": sys.executable,
    }
    found = preflight.answer(question)
    assert found["ddptop"] == __version__
    assert found["command"][-1] == "node"
    assert found["addresses"][-1] == "127.0.0.1"
    assert len(found["ports"]) == preflight.PORTS
    assert found["script_digest"] == preflight.digest_of(tmp_path / "train.py")
    assert set(found["files"]) == {"train.py", "pkg/model.py"}
    assert found["has_cwd"] is True
    assert preflight.answer({**question, "kind": "none"})["files"] is None
    other = preflight.answer({**question, "target": "none.py", "cwd": "/none/such"})
    assert (other["script_digest"], other["has_cwd"]) == (None, False)


def test_slurm_node_offers_only_the_gpus_of_its_allocation(monkeypatch, ddptop_home):
    asked = []

    def choose(gpus, *_, **__):
        asked.append(gpus)
        raise UsageError("no GPUs here", "none")

    monkeypatch.setattr(preflight.choice, "choose", choose)
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    question = {
        "type": "facts",
        "kind": "none",
        "target": "",
        "cwd": "/",
        "python": sys.executable,
        "gpus": "all",
    }
    found = preflight.answer({**question, "in_slurm": True})
    assert found["gpus_refused"] == "allocation"
    preflight.answer({**question, "gpus": None, "in_slurm": True})
    preflight.answer(question)  # over ssh, although sshd runs in a job
    monkeypatch.setenv("SLURM_STEP_GPUS", "2")
    preflight.answer({**question, "in_slurm": True})
    assert asked == ["none", "all", "all"]


def test_the_folder_is_compared_by_its_python_files_only(tmp_path):
    (tmp_path / "a.py").write_text("1")
    for folder in (".git", "__pycache__", "venv", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("2")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    assert set(preflight.digests(tmp_path)) == {"a.py", "data/x.py"}
    before = preflight.digests(tmp_path)
    (tmp_path / "losses.csv").write_text("3")
    (tmp_path / ".git" / "x.py").write_text("4")
    assert preflight.digests(tmp_path) == before
    (tmp_path / "data" / "x.py").write_text("5")
    assert preflight.digests(tmp_path) != before


def test_a_host_is_reached_only_where_it_is_the_one_that_was_meant(monkeypatch):
    ports, nonce = preflight.listen()
    target = {"host": "b", "addresses": ["127.0.0.1", "127.0.0.2"], "port": ports[-1]}
    asked = {"type": "reach", "targets": [{**target, "nonce": nonce}]}
    assert preflight.answer(asked) == {"reached": {"b": ["127.0.0.1", "127.0.0.2"]}}
    asked = {"type": "reach", "targets": [{**target, "nonce": "another"}]}
    assert preflight.answer(asked) == {"reached": {"b": []}}
    asked = {"type": "reach", "targets": [{**target, "port": ports[0], "nonce": nonce}]}
    assert preflight.answer(asked) == {"reached": {"b": []}}


def test_ranks_elsewhere_get_the_shells_variables_but_not_what_belongs_to_this_machine():
    env = {
        "WANDB_API_KEY": "k",
        "NCCL_DEBUG": "INFO",
        "PATH": "/bin",
        "HOME": "/root",
        "SSH_AUTH_SOCK": "/s",
        "CUDA_VISIBLE_DEVICES": "0",
        "DDPTOP_HOME": "/d",
        "XDG_RUNTIME_DIR": "/run",
        "SLURM_JOB_ID": "1",
        "TERM": "xterm",
        "BYTES": "\udcff",
    }
    assert set(handover.carried(env)) == {"WANDB_API_KEY", "NCCL_DEBUG", "PATH"}


def test_what_cannot_be_read_in_the_folder_is_left_out_of_the_comparison():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "a.py").write_text("1")
        (folder / "b.py").symlink_to("a.py")
        (folder / "circle.py").symlink_to("circle.py")
        (folder / "closed").mkdir(mode=0)
        os.mkfifo(folder / "pipe.py")
        was = os.geteuid()
        try:
            if was == 0:  # root may read everything
                os.seteuid(65534)
            assert set(preflight.digests(folder)) == {"a.py", "b.py"}
        finally:
            os.seteuid(was)


def test_an_ssh_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setenv("DDPTOP_SSH", "/none/such/ssh")
    judged, _ = collect("a")
    assert "a: /none/such/ssh cannot be run (No such file or directory)" in str(judged.refusals[0])


@pytest.mark.parametrize("address", ["x" * 70, "no\0address"])
def test_an_address_that_is_none_is_not_reached(address):
    target = preflight.Target(host="a", addresses=[address], port=1, nonce="n")
    assert preflight.reach([target]) == {"a": []}
