"""`--hosts`, `--hostfile`, `--nodes`, and what ssh's failures mean, without a network."""

from __future__ import annotations

import json
import shlex

import msgspec
import pytest
from tests.support.tables import table

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch import ssh
from ddptop_runner.launch.request import (
    HostRequest,
    fewest_nodes,
    parse_hostfile,
    parse_hosts,
    parse_nodes,
)
from ddptop_runner.store.log_clean import is_safe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [("a", None)]),
        ("a,b:0-3,c", [("a", None), ("b", "0-3"), ("c", None)]),
        (" a , me@b ", [("a", None), ("me@b", None)]),
        ("a:0,2,b:1", [("a", "0,2"), ("b", "1")]),
        ("a:0,2-3,5,b", [("a", "0,2-3,5"), ("b", None)]),
        ("a:auto:2,b:none", [("a", "auto:2"), ("b", "none")]),
        ("a:GPU-1,GPU-2,b", [("a", "GPU-1,GPU-2"), ("b", None)]),
        ("10.0.0.1:0,10.0.0.2", [("10.0.0.1", "0"), ("10.0.0.2", None)]),
        ("[::1]:0-1,me@[fe80::1%eth0]", [("::1", "0-1"), ("me@fe80::1%eth0", None)]),
        ("gpu-1.example.org,n_2", [("gpu-1.example.org", None), ("n_2", None)]),
    ],
)
def test_hosts_are_read_with_their_gpus(text, expected):
    assert [(one.host, one.gpus) for one in parse_hosts(text)] == expected


@pytest.mark.parametrize(("text", "words"), table(__file__, "refused"))
def test_a_list_that_cannot_be_used_is_refused_by_name(text, words):
    if not words:  # numbers are also names if no GPUs precede them
        assert [one.host for one in parse_hosts(text)] == text.split(",")
        return
    with pytest.raises(UsageError) as refusal:
        parse_hosts(text)
    for word in words:
        assert word in str(refusal.value)


def test_a_hostfile_has_a_host_a_line():
    text = "# the cluster\na slots=4\n\n  b:0,2   # half of it\nme@c\n"
    assert parse_hostfile(text, "F") == (
        HostRequest("a", None, 4),
        HostRequest("b", "0,2"),
        HostRequest("me@c"),
    )


@pytest.mark.parametrize(("text", "words"), table(__file__, "refused_lines"))
def test_a_hostfile_that_cannot_be_used_is_refused_by_line(text, words):
    with pytest.raises(UsageError) as refusal:
        parse_hostfile(text, "F")
    assert words in str(refusal.value)


def test_the_number_of_nodes_is_read_and_compared_with_the_list():
    assert parse_nodes("2:3") == (2, 3)
    assert parse_nodes("4") == (4, 4)
    assert fewest_nodes(None, 3) == 3
    assert fewest_nodes((2, 3), 3) == 2
    for text in ("", "x", "0", "0:2", "-1:2", "2:", ":2", "1:2:3", "1.5"):
        with pytest.raises(UsageError, match="use N, or MIN:MAX"):
            parse_nodes(text)
    with pytest.raises(UsageError, match="use 2:3"):
        parse_nodes("3:2")
    with pytest.raises(UsageError, match=r"--nodes 1:4, but --hosts lists 2; .* --nodes 1:2"):
        fewest_nodes((1, 4), 2)


# --- ssh ----------------------------------------------------------------------------------------


def test_ssh_never_asks_and_a_host_is_no_option():
    argv = ssh.ssh_argv("b", "true", {})
    assert argv[0] == "ssh"
    assert argv[-3:] == ["--", "b", "true"]
    assert "BatchMode=yes" in argv
    argv = ssh.ssh_argv("b", "true", {"DDPTOP_SSH": "my-ssh -F '/a b/config'"})
    assert argv[:3] == ["my-ssh", "-F", "/a b/config"]
    with pytest.raises(UsageError, match="DDPTOP_SSH is not a valid command line"):
        ssh.ssh_argv("b", "true", {"DDPTOP_SSH": "ssh '"})


def test_nothing_is_run_through_ssh_on_this_machine(monkeypatch):
    monkeypatch.setattr(ssh.socket, "gethostname", lambda: "h0.example.org")
    assert all(map(ssh.is_here, ["localhost", "h0", "h0.example.org"]))
    assert not any(map(ssh.is_here, ["h1", "nobody@localhost", "127.0.0.1"]))
    assert ssh.on_host("h0", ["x", "a b"], {}) == ["x", "a b"]
    assert ssh.on_host("h1", ["x", "a b"], {})[-2:] == ["h1", "x 'a b'"]


SAID = table(__file__, "ssh")


@pytest.mark.parametrize("kind", SAID)
def test_each_ssh_failure_has_its_own_remedy(kind):
    stderr, status, words = (SAID[kind][name] for name in ("stderr", "status", "words"))
    why = ssh.why_unreachable("me@h", status, f"Authorized use only.\n{stderr}\n", 20)
    assert why.kind == kind
    for word in words:
        assert word in f"{why.problem}; {why.remedy}"


@pytest.mark.parametrize("kind", ["denied", "key-changed", "refused"])
def test_what_the_remote_side_prints_is_not_taken_for_sshs(kind):
    why = ssh.why_unreachable("me@h", 1, f"{SAID[kind]['stderr']}\n", 20)
    assert why.kind == "ssh"
    assert "exit status 1" in why.problem


def test_silent_host_is_named_with_its_timeout():
    why = ssh.why_unreachable("h", None, "", 20)
    assert "no response within 20 s" in why.problem
    assert "ssh h true" in why.remedy


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_node_is_found_beside_this_one_or_in_its_own_environment(shell, tmp_path, monkeypatch):
    import subprocess

    script = tmp_path / "it's here" / "start.sh"
    script.parent.mkdir()
    own = ["/bin/sh", "-e", str(script), "node"]
    command = ssh.node_command("1.2", own)

    def run():
        return subprocess.run(
            [shell, "-c", command], capture_output=True, text=True, env={"HOME": str(tmp_path)}
        )

    assert "\n" not in command
    nothing = run()
    assert (nothing.returncode, nothing.stderr) == (127, f"{ssh.NOT_INSTALLED}\n")
    script.write_text("echo here $1\n")
    assert run().stdout == "here node\n"
    made = tmp_path / ssh.VENVS / "1.2" / "ddptop-node"
    made.parent.mkdir(parents=True)
    made.write_text("#!/bin/sh\necho made\n")
    made.chmod(0o755)
    assert run().stdout == "made\n"
    assert shlex.split(command)[0] == "sh"


HOSTILE = "a\x1b]0;owned\x07b\u202ec\x9bd"


@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "as it is"])
def test_what_a_node_reports_cannot_steer_the_terminal(ascii_only: bool):
    event = {
        "type": "node",
        "ts": "2026-01-01T00:00:00Z",
        "message": HOSTILE,
        "data": {HOSTILE: [HOSTILE]},
    }
    line = json.dumps({"type": "event", "event": event}, ensure_ascii=ascii_only)
    report = ssh.decode_report(line.encode() + b"\n")
    shown = json.dumps(msgspec.to_builtins(report), ensure_ascii=False)
    assert "owned" in shown
    assert is_safe(shown)
    assert "\\u00" not in shown
