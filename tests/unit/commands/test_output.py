"""Output of commands: readable numbers, data on stdout, and messages on stderr."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys

import pytest
from ddptop import __main__ as main
from ddptop import output
from ddptop.cli import cli
from ddptop.job.figures import jobs
from ddptop.output import count, put_json, table
from tests.support.builders import gone, make_spec, put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.units import local_time
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import Alert, Cause, Imbalance, RankSample

GIB = 2**30


def test_count():
    assert (count(None), count(0), count(12)) == ("n/a", "0", "12")


def test_a_time_of_another_day_has_its_date():
    now = dt.datetime.now().astimezone()
    assert local_time(None) == "n/a"
    assert local_time(now.astimezone(dt.timezone.utc)) == f"{now:%H:%M:%S}"
    then = now - dt.timedelta(days=3)
    assert local_time(then) == f"{then:%Y-%m-%d %H:%M}"


def test_a_table_aligns_and_leaves_no_blanks_at_the_end():
    text = table(["NAME", "N", "X"], [["a", "10", ""], ["long name", "5", "y"]], right=(1,))
    assert text == "NAME        N  X\na          10\nlong name   5  y"


def test_json_is_one_line(capsys):
    put_json({"loss": float("nan"), "name": "日\n"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"loss": None, "name": "日\n"}


# --- verbs on jobs that lie there ---------------------------------------------------------------


def rank(number: int, **fields: object) -> RankSample:
    return RankSample(rank=number, local_rank=number, host=procs.host_name(), **fields)


def test_ls_lists_the_living_first_and_the_old_on_request(ddptop_home, ddptop_cli):
    here = procs.identify(os.getpid())
    put_job("old", {"state": "finished", "ended_at": utc_now() - dt.timedelta(days=2)})
    put_job("failed", {"state": "failed", "ended_at": utc_now()}, created_at=utc_now())
    put_job("lost", {"state": "running", "guardian": gone(), "eta_s": 60.0})
    live = {"state": "running", "guardian": here, "step": 5, "total_steps": 90, "eta_s": 125.0}
    put_job("live", live, args=["--lr", "1 2"])
    answer = ddptop_cli("ls")
    assert answer.stderr == ""
    rows = [line.split() for line in answer.stdout.splitlines()]
    heads = "JOB STATE RANKS ATTEMPT STEP DONE ETA ELAPSED STARTED STATUS COMMAND"
    assert rows[0] == heads.split()
    assert [row[0] for row in rows[1:]] == ["live", "failed", "lost"]
    assert rows[1][:7] == ["live", "running", "2", "0", "5", "/", "90"]
    assert rows[1][7:10] == ["5.6%", "2m", "05s"]
    assert answer.stdout.splitlines()[1].endswith("live.py --lr '1 2'")
    assert rows[3][:7] == ["lost", "lost", "2", "0", "n/a", "-", "-"]
    everything = json.loads(ddptop_cli("ls", "--all", "--json").stdout)
    assert {row["job"] for row in everything["jobs"]} == {"old", "failed", "lost", "live"}
    assert everything["jobs"][0]["job"] == "live"


def test_ls_says_how_a_job_ended_why_and_how_long_it_ran(ddptop_home, ddptop_cli):
    now = utc_now()
    cause = Cause(
        kind="exception",
        rank=1,
        exception="ValueError",
        place="/a/train.py:81 in step",
        headline="rank 1: ValueError: bad at train.py:81",
        summary="Rank 1 (pid 5) was the first to fail: exit status 1. ValueError: bad.",
    )
    put_job("failed", {"state": "failed", "ended_at": now, "ran_s": 62.0, "cause": cause})
    lost_it = [rank(0, loss_state="ok", loss=1.0), rank(1, loss_state="nan")]
    put_job("wasted", {"state": "finished", "ended_at": now, "ran_s": 7.0, "ranks": lost_it})
    lines = {line.split()[0]: line for line in ddptop_cli("ls").stdout.splitlines()}
    assert " 1m " in lines["failed"]
    assert "rank 1: ValueError: bad at train.py:81" in lines["failed"]
    assert "the loss was NaN at the end, " in lines["wasted"]
    assert "finished, the loss was NaN at the end, ended " in ddptop_cli("status", "wasted").stdout
    rows = {row["job"]: row for row in json.loads(ddptop_cli("ls", "--json").stdout)["jobs"]}
    assert rows["failed"]["cause"]["rank"] == 1
    assert rows["failed"]["elapsed_s"] == 62.0 and rows["failed"]["ended_at"]
    assert (rows["wasted"]["loss_state"], rows["failed"]["loss_state"]) == ("nan", None)


def test_on_a_narrow_terminal_ls_keeps_the_status(ddptop_home, ddptop_cli, monkeypatch):
    put_job(
        "wasted", {"state": "finished", "ended_at": utc_now(), "ranks": [rank(0, loss_state="nan")]}
    )
    monkeypatch.setattr("ddptop.output.columns", lambda: 90)
    monkeypatch.setattr("ddptop.commands.ls.columns", lambda: 90)
    head, row = ddptop_cli("ls").stdout.splitlines()
    assert "the loss was NaN at the end" in row and "ATTEMPT" not in head
    assert len(row) <= 90


def test_a_column_of_ls_is_one_entry_of_the_figures(ddptop_home, ddptop_cli, monkeypatch):
    added = jobs.JobFigure(key="threads", ls=jobs.Plain(99, "THREADS", lambda job: "7"))
    monkeypatch.setattr(jobs, "FIGURES", (*jobs.FIGURES, added))
    put_job("old", {"state": "finished", "ended_at": utc_now()})
    head, row = ddptop_cli("ls").stdout.splitlines()
    assert (head.split()[-1], row.split()[-1]) == ("THREADS", "7")


def test_ls_without_jobs_prints_only_to_stderr(ddptop_cli):
    answer = ddptop_cli("ls")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == "no jobs yet; start one with ddptop launch train.py\n"
    as_json = ddptop_cli("ls", "--json")
    assert json.loads(as_json.stdout) == {"schema": 1, "jobs": []}
    assert as_json.stderr == ""


def test_ls_names_what_it_cannot_read_and_lists_the_rest(ddptop_home, ddptop_cli):
    put_job("good", {"state": "finished", "ended_at": utc_now()})
    put_job("bad").spec_file.write_text("{")
    answer = ddptop_cli("ls", "--json")
    assert answer.returncode == 0
    assert [row["job"] for row in json.loads(answer.stdout)["jobs"]] == ["good"]
    (line,) = answer.stderr.splitlines()
    assert "bad/job.json cannot be read" in line and "ddptop rm bad" in line
    assert ddptop_cli("rm", "bad").returncode == 0
    assert not (ddptop_home / "runs" / "bad").exists()


def test_rm_checks_all_names_before_it_deletes_one(ddptop_home, ddptop_cli):
    ended = {"state": "finished", "ended_at": utc_now()}
    for job in ("a1", "a2"):
        put_job(job, ended)
    put_job("live", {"state": "running", "guardian": procs.identify(os.getpid())})
    newer = put_job("newer", ended)
    newer.spec_file.write_text(newer.spec_file.read_text().replace('"schema": 1', '"schema": 2'))
    for other, status, words in (
        ("none", 3, "no job named 'none'"),
        ("live", 2, "live is running"),
        ("newer", 1, "use that version"),
        ("a", 2, "a1, a2"),
    ):
        answer = ddptop_cli("rm", "a1", other)
        assert (answer.returncode, answer.stdout) == (status, ""), answer.stderr
        assert words in answer.stderr
        assert len(answer.stderr.splitlines()) == 1
    assert len(list((ddptop_home / "runs").iterdir())) == 4
    assert ddptop_cli("rm", "a1", "a1", "a2").returncode == 0
    assert sorted(path.name for path in (ddptop_home / "runs").iterdir()) == ["live", "newer"]


def test_status_tells_a_failure_with_its_last_lines(ddptop_home, ddptop_cli):
    evidence = str(ddptop_home / "runs" / "train" / "evidence" / "attempt-0-failure")
    cause = Cause(
        kind="exit_code",
        rank=1,
        exit_code=3,
        summary="Rank 1 (pid 11) was the first to fail: exit status 3.",
        evidence=evidence,
    )
    folder = put_job(
        "train",
        {
            "state": "failed",
            "ended_at": utc_now(),
            "restarts_used": 1,
            "restarts_left": 2,
            "cause": cause,
            "imbalance": Imbalance(),
            "alerts": [Alert(id="x", severity="warning", message="look here", since=utc_now())],
            "ranks": [
                rank(0, pid=10, state="stopped", signal="SIGTERM", loss=2.345678, step=7),
                rank(1, pid=11, state="failed", exit_code=3, loss_state="nan", step_time_s=0.25),
            ],
        },
    )
    log = folder.log_file(0, 1)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {n}\n" for n in range(40)))
    answer = ddptop_cli("status", "train")
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("train: failed, ended ")
    assert ", attempt 0, restarts 1 used, 2 left, " in lines[0]
    assert "  Rank 1 (pid 11) was the first to fail: exit status 3." in lines
    assert f"  evidence: {evidence}" in lines
    assert "  warning: look here" in lines
    (first,) = [line.split() for line in lines if " 10 " in line]
    assert first == [
        *["0", "n/a", "10", "stopped", "(SIGTERM)", "7", "2.3457", "n/a", "n/a", "n/a"]
    ]
    (second,) = [line.split() for line in lines if " 11  failed" in line]
    assert second[3:8] == ["failed", "(3)", "n/a", "NaN", "250"]
    assert lines[-1] == "  line 39"
    assert "last lines from rank 1:" in lines and "  line 25" in lines and "  line 24" not in lines


def test_status_says_how_old_its_words_are(ddptop_home, ddptop_cli):
    here = procs.identify(os.getpid())
    state = {"state": "running", "guardian": gone(), "supervisor": here}
    put_job("train", {**state, "ts": utc_now() - dt.timedelta(seconds=90)})
    answer = ddptop_cli("status")
    assert "last update 9" in answer.stdout
    assert "unguarded: its guardian is gone, " in answer.stdout
    status = json.loads(ddptop_cli("status", "--json").stdout)
    assert status["guarded"] is False and status["snapshot_age_s"] >= 90


def test_status_says_why_devices_are_not_known(ddptop_home, ddptop_cli):
    here = procs.identify(os.getpid())
    state = {"state": "running", "guardian": here, "supervisor": here, "device_note": "it blocks"}
    put_job("train", state)
    assert "  device metrics: it blocks" in ddptop_cli("status", "train").stdout.splitlines()
    lost = Alert(id="gpu-lost", severity="error", message="GPU 1 is lost", since=utc_now())
    put_job("other", {**state, "alerts": [lost]})
    assert "it blocks" not in ddptop_cli("status", "other").stdout
    put_job("ended", {**state, "state": "finished"})
    assert "it blocks" not in ddptop_cli("status", "ended").stdout


@pytest.mark.parametrize(
    ("state", "changes", "status"),
    [
        ("finished", {}, 0),
        ("failed", {}, 1),
        ("failed", {"requeue": True}, 1),
        ("failed", {"requeue": False}, 93),
        ("stopped", {}, 4),
        ("running", {"guardian": gone()}, 5),
    ],
)
def test_the_end_of_a_job_is_the_exit_status_of_wait(
    ddptop_home, ddptop_cli, state, changes, status
):
    put_job("train", {"state": state, "ended_at": utc_now(), **changes})
    answer = ddptop_cli("wait", "train")
    assert (answer.returncode, answer.stdout) == (status, ""), answer.stderr
    assert ("ddptop status train" in answer.stderr) is (status != 0)


def test_wait_gives_up_after_its_time(ddptop_home, ddptop_cli):
    put_job("train", {"state": "running", "guardian": procs.identify(os.getpid())})
    answer = ddptop_cli("wait", "train", "--timeout", "0.1")
    assert (answer.returncode, answer.stdout) == (124, "")
    assert "train is still running after 0.1 s" in answer.stderr


@pytest.mark.parametrize(("verb", "unbuffered"), [("ls", False), ("ls", True), ("--help", False)])
def test_a_reader_that_has_hung_up_gets_no_traceback(ddptop_home, monkeypatch, verb, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1" if unbuffered else "")
    put_job("train", {"state": "running", "guardian": procs.identify(os.getpid())})
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "ddptop", verb],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (answer.returncode, answer.stderr) == (1, "")


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_full_disk_is_one_line(ddptop_home, monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1" if unbuffered else "")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        answer = subprocess.run(
            [sys.executable, "-m", "ddptop", "ls", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert answer.returncode == 1
    assert answer.stderr == "ddptop: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_files_of_ours(ddptop_home, closed):
    put_job("train", {"state": "running", "guardian": procs.identify(os.getpid())})
    command = f'"{sys.executable}" -m ddptop ls --json {closed}'
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    assert (answer.stdout == "") == (">&-" in closed.replace("2>&-", ""))


def test_a_job_of_another_host_reads_as_such(ddptop_home, ddptop_cli):
    put_job("far", {"state": "running", "guardian": gone()}, host="elsewhere")
    assert json.loads(ddptop_cli("status", "far", "--json").stdout)["state"] == "running"
    answer = ddptop_cli("stop", "far")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "far is on host elsewhere" in answer.stderr
    assert make_spec("far").host != "elsewhere"


def test_nothing_printed_steers_the_terminal(capsys):
    output.put("boom \x1b]0;title\x07\x1b[31min\trank 1\x9b2J \u202e\nnext")
    output.info("no such file \x1b[2Jx")
    printed = capsys.readouterr()
    assert printed.out == "boom in\trank 1 \nnext\n"
    assert printed.err == "no such file x\n"


def test_an_argument_that_is_no_text_can_be_printed(capsys):
    output.put("train.py \udcff")
    assert capsys.readouterr().out == "train.py ?\n"


def test_a_locale_without_a_letter_stops_no_verb(ddptop_home, monkeypatch):
    put_job("train", {"state": "finished", "ended_at": utc_now()}, target="trän.py")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = [sys.executable, "-m", "ddptop", "ls"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "tr?n.py" in answer.stdout


def test_long_lines_are_folded_and_clipped_on_a_terminal_only(monkeypatch, capsys):
    text = "short\n" + "word " * 7 + "/a/path/that/stays/whole"
    for put in (output.put_folded, lambda text, _: output.put_clipped(text)):
        put(text, 4)
        assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setattr(output, "columns", lambda: 24)
    output.put_folded(text, 4)
    assert capsys.readouterr().out.split("\n") == [
        "short",
        "word word word word word",
        "    word word",
        "    /a/path/that/stays/whole",
        "",
    ]
    output.put_clipped(text)
    assert capsys.readouterr().out == "short\nword word word word wor…\n"


@pytest.mark.parametrize("verb", ["ls", "gpus"])
def test_ctrl_c_while_it_is_loaded_gets_no_traceback(verb: str) -> None:
    script = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name in ("ddptop.commands.ls", "ddptop.commands.gpus"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from ddptop.__main__ import main
sys.exit(main())
"""
    command = [sys.executable, "-c", script, verb]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "line", ["ls", "ls --all", "ls --json --all", "status", "status --json bert", "gpus --json"]
)
def test_a_verb_run_without_click_gets_what_click_would_hand_it(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, calls = line.split()[0], []

    def run(*values: object, **named: object) -> int:
        calls.append((values, named))
        return 0

    monkeypatch.setattr(f"ddptop.commands.{verb}.run", run)
    assert main._run_directly(line.split()) == 0
    assert cli.main(line.split(), standalone_mode=False) == 0
    assert calls[0] == calls[1]


@pytest.mark.parametrize("line", ["", "attach", "attach bert", "attach host:bert"])
def test_a_screen_opened_without_click_gets_what_click_would_hand_it(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    for name in ("run_job", "run_overview"):

        def run(*values: object, name: str = name, **named: object) -> int:
            calls.append((name, values, {key: one for key, one in named.items() if one}))
            return 0

        monkeypatch.setattr(f"ddptop.commands.attach.{name}", run)
    assert main._run_directly(line.split()) == 0
    assert cli.main(line.split(), standalone_mode=False) == 0
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    "line",
    [
        *["ls --al", "ls bert", "status -w", "status a b", "gpus -h", "rm"],
        *["--readonly", "attach --readonly", "attach a b", "attach --json a", "watch 1"],
    ],
)
def test_all_other_lines_are_left_to_click(line: str) -> None:
    assert main._run_directly(line.split()) is None


def test_completion_is_left_to_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DDPTOP_COMPLETE", "bash_complete")
    assert main._run_directly([]) is None
