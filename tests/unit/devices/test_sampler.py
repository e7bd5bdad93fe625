"""The sampler process: what it prints and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.support.programs import piped

from ddptop_runner.devices.report import decode_report
from ddptop_runner.devices.sampler import Options, parse_arguments
from ddptop_runner.host import procs

SAMPLER = [sys.executable, "-m", "ddptop_runner.devices.sampler"]


def run(env, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*SAMPLER, *arguments], env=env, capture_output=True, timeout=60, check=False
    )


def test_once_prints_one_report_and_ends_with_0(make_stub):
    done = run(make_stub(2).env(), "--once")
    assert (done.returncode, done.stderr) == (0, b"")
    report = decode_report(*done.stdout.splitlines())
    assert report.source == "nvml"
    assert [gpu.index for gpu in report.gpus] == [0, 1]
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert now_s - 20 < report.boottime_s <= now_s


@pytest.mark.parametrize(
    ("gpus", "arguments", "words"),
    [(0, (), "found no devices"), (1, ("--uuids", "GPU-none"), "not on this machine: GPU-none")],
)
def test_nothing_to_sample_exits_with_3_and_prints_the_reason(make_stub, gpus, arguments, words):
    done = run(make_stub(gpus).env(), *arguments)
    assert done.returncode == 3
    report = decode_report(done.stdout.splitlines()[-1])
    assert (report.source, report.gpus) == (None, [])
    assert words in report.note


@pytest.mark.parametrize(
    "arguments", [["--interval", "0"], ["--interval", "nan"], ["--interval"], ["--fast"]]
)
def test_wrong_arguments_end_with_2(arguments, no_library_env):
    done = run(no_library_env, *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"usage:" in done.stderr


def test_arguments():
    assert parse_arguments([]) == Options(None, 1.0, False)
    assert parse_arguments(["--uuids", "a,b", "--once"]) == Options(("a", "b"), 1.0, True)
    assert parse_arguments(["--uuids", "a", "--all", "--interval", "2"]) == Options(None, 2.0)


def test_a_request_is_answered_between_ticks_with_what_changes_every_second(make_stub):
    stub = make_stub(1)
    with piped(*SAMPLER, "--interval", "600", "--on-request", env=stub.env(), text=False) as child:
        first = decode_report(child.stdout.readline())
        for used in (3 << 30, 2 << 30):  # the second request comes before anything is due
            stub.set(0, mem_used=used)
            child.stdin.write(b"\n")
            child.stdin.flush()
            report = decode_report(child.stdout.readline())
            assert (report.gpus[0].mem_used_bytes, report.gpus[0].lost) == (used, False)
            assert report.boottime_s > first.boottime_s
        child.stdin.close()
        assert child.wait(60) == 0


def test_it_exits_without_a_reader_even_between_ticks(make_stub):
    with subprocess.Popen(
        [*SAMPLER, "--interval", "600"], env=make_stub(1).env(), stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(60) == 0


def test_it_ends_when_its_parent_dies(make_stub, tmp_path, wait_until):
    output = tmp_path / "output"
    script = f"""
import os, subprocess, sys, time
child = subprocess.Popen({[*SAMPLER, "--interval", "0.1"]!r}, stdout=open({str(output)!r}, "wb"))
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], env=make_stub(1).env(), stdout=subprocess.PIPE, text=True
    ) as parent:
        sampler = int(parent.stdout.readline())
        wait_until(lambda: output.exists() and output.stat().st_size)
        parent.kill()
        try:
            wait_until(lambda: has_ended(sampler), what="the sampler ends")
        except BaseException:
            os.kill(sampler, signal.SIGKILL)
            raise


def has_ended(pid: int) -> bool:
    return procs.state_letter(pid) in (None, "Z", "X")


def test_ctrl_c_is_for_the_one_who_started_it(make_stub):
    with subprocess.Popen(
        [*SAMPLER, "--interval", "0.1"], env=make_stub(1).env(), stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        for _ in range(3):
            assert child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM
