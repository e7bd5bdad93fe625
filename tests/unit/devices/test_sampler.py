"""The sampler process: what it prints and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.support.programs import piped

from ddptop_runner.devices.report import Options, decode_report, sampler_command
from ddptop_runner.host import procs


def sampler(**options: Any) -> list[str]:
    return sampler_command(Options(**options))


def run(env, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(sampler(**options), env=env, capture_output=True, timeout=60, check=False)


def test_once_prints_one_report_and_ends_with_0(make_stub):
    done = run(make_stub(2).env(), once=True)
    assert (done.returncode, done.stderr) == (0, b"")
    report = decode_report(*done.stdout.splitlines())
    assert report.source == "nvml"
    assert [gpu.index for gpu in report.gpus] == [0, 1]
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert now_s - 20 < report.boottime_s <= now_s


@pytest.mark.parametrize(
    ("gpus", "options", "words"),
    [(0, {}, "found no devices"), (1, {"uuids": ["GPU-none"]}, "not on this machine: GPU-none")],
)
def test_nothing_to_sample_exits_with_3_and_prints_the_reason(make_stub, gpus, options, words):
    done = run(make_stub(gpus).env(), **options)
    assert done.returncode == 3
    report = decode_report(done.stdout.splitlines()[-1])
    assert (report.source, report.gpus) == (None, [])
    assert words in report.note


def test_a_request_is_answered_between_ticks_with_what_changes_every_second(make_stub):
    stub = make_stub(1)
    with piped(*sampler(interval_s=600, on_request=True), env=stub.env(), text=False) as child:
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
        sampler(interval_s=600), env=make_stub(1).env(), stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(60) == 0


def test_it_ends_when_its_parent_dies(make_stub, tmp_path, wait_until):
    output = tmp_path / "output"
    script = f"""
import os, subprocess, sys, time
child = subprocess.Popen({sampler(interval_s=0.1)!r}, stdout=open({str(output)!r}, "wb"))
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], env=make_stub(1).env(), stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        wait_until(lambda: output.exists() and output.stat().st_size)
        parent.kill()
        try:
            wait_until(lambda: has_ended(pid), what="the sampler ends")
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise


def has_ended(pid: int) -> bool:
    return procs.state_letter(pid) in (None, "Z", "X")


def test_ctrl_c_is_for_the_one_who_started_it(make_stub):
    with subprocess.Popen(
        sampler(interval_s=0.1), env=make_stub(1).env(), stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        for _ in range(3):
            assert child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM
