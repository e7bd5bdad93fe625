"""Two hours of sampling in a few seconds: what comes and goes must not accumulate."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from tests.support.nvml_stub import GIB, StubGpu, StubProcess
from tests.support.programs import piped

READER = """
import sys
import psutil
from ddptop_runner.devices.sampler import open_backend
from ddptop_runner.model.snapshot import encode
this, backend = psutil.Process(), open_backend()
for line in sys.stdin:
    lost = sum(gpu.lost for gpu in backend.sample(float(line)))
    encode(backend.note)
    print(this.memory_info().rss, lost, flush=True)
"""
MIB = 2**20


@pytest.mark.slow
def test_memory_stays_flat_while_devices_and_processes_come_and_go(make_stub):
    devices = [StubGpu(index) for index in range(8)]
    devices[7].mig_mode = 1
    instance = StubGpu(100, uuid="MIG-0", minor=0, parent=devices[7].uuid)
    stub = make_stub([*devices, instance])
    dice = random.Random(1)
    resident, losses = [], 0
    with piped(
        sys.executable, "-c", READER, env=stub.env(log=False), stderr=subprocess.PIPE
    ) as reader:
        for tick in range(7200):
            if tick % 7 == 0:
                change(stub, dice, tick)
            reader.stdin.write(f"{tick}\n")
            reader.stdin.flush()
            rss, lost = map(int, reader.stdout.readline().split())
            resident.append(rss)
            losses += lost
        _, errors = reader.communicate(timeout=60)
    assert (reader.returncode, errors) == (0, "")
    assert losses > 1000
    assert max(resident[600:]) - resident[600] < 5 * MIB


def change(stub, dice: random.Random, tick: int) -> None:
    with stub.together():
        stub.set(dice.randrange(8), lost=int(dice.random() < 0.3))
        pids = [dice.randrange(1, 60000) for _ in range(dice.randrange(20))]
        processes = [StubProcess(pid, GIB, sm_util=dice.randrange(100)) for pid in pids]
        stub.set_processes(dice.randrange(8), processes)
        if tick % 70 == 0:
            stub.raise_xid(dice.randrange(8), dice.choice([31, 79, 94]))
        for gpu in stub.gpus:
            del gpu.xids[:-8]
