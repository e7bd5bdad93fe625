"""Devices that live jobs use or wait for, and the lock under which devices are assigned."""

from __future__ import annotations

import os
import threading

import pytest
from tests.support.builders import gone, put_job

from ddptop_runner.base import files
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import members_dir, runs_dir
from ddptop_runner.host import procs
from ddptop_runner.launch.gpus.usage import claims, taking, uses
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device

ZERO, ONE = Device(index=0, uuid="GPU-0"), Device(index=1, uuid="GPU-1")


def live(**fields: object) -> dict[str, object]:
    here = {"boot_id": procs.boot_id(), "pid_ns": procs.pid_namespace()}
    return {"guardian": procs.identify(os.getpid()), **here, **fields}


def test_live_jobs_have_their_devices(ddptop_home):
    put_job("runs", live(), devices=[ZERO])
    put_job("comes-up", None, devices=[ONE], job_id="comes-up@1", created_at=utc_now())
    put_job("ended", live(state="finished"), devices=[ZERO])
    put_job("lost", live(guardian=gone()), devices=[ZERO])
    put_job("elsewhere", live(boot_id="another"), devices=[ZERO], host="other")
    put_job("on-cpus", live())
    found = sorted(claims(), key=lambda claim: claim[0])
    assert found == [("job comes-up", "GPU-1"), ("job runs", "GPU-0")]
    assert claims(besides="comes-up@1") == [("job runs", "GPU-0")]


def test_parts_of_jobs_on_several_machines_have_their_devices(ddptop_home):
    folder = put_job("part", live(), devices=[ONE], job_id="j@1.0")
    members_dir().mkdir()
    folder.path.rename(members_dir() / "j@1.0")
    assert claims() == [("job part", "GPU-1")]
    assert claims(besides="j@1.0") == []


def test_uses_join_the_driver_with_what_jobs_have(ddptop_home):
    put_job("runs", live(ranks=[]), devices=[ZERO])
    process = GpuProcess(pid=7, mem_used_bytes=2**30, user="alice", command="a")
    present = [
        GpuSample(index=0, uuid="GPU-0", processes=[]),
        GpuSample(index=1, uuid="GPU-1", processes=[process], mem_used_bytes=2**30),
        GpuSample(index=1, uuid="MIG-1", parent_uuid="GPU-1", processes=[]),
    ]
    found = uses([ONE, ZERO, Device(index=1, uuid="MIG-1")], present)
    assert [use.holders for use in found] == [
        ("alice's a (pid 7) uses 1.0 GiB",),
        ("reserved by job runs",),
        (),
    ]


def test_one_at_a_time_takes_devices(ddptop_home):
    runs_dir().mkdir(parents=True)
    inside, others = threading.Event(), []

    def hold() -> None:
        with taking() as had:
            others.append(had)
            inside.set()
            go_on.wait(10)

    go_on = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    with taking(timeout_s=0) as had:
        assert not had
    go_on.set()
    with taking() as had:
        assert had
    thread.join()
    assert others == [True]


def test_file_system_without_locks_blocks_nothing(ddptop_home, monkeypatch):
    runs_dir().mkdir(parents=True)

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    with taking(timeout_s=0) as had:
        assert had
    with pytest.raises(OSError, match="No locks"):  # not "another process holds it"
        files.lock(runs_dir() / "lock")


def test_the_lock_is_no_job(ddptop_home):
    runs_dir().mkdir(parents=True)
    with taking():
        assert list(runs_dir().iterdir())
    assert claims() == []
