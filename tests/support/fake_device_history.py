"""Histories of devices, as a job's supervisor writes them."""

from __future__ import annotations

import math

from tests.support.fake_home import GIB, NOW, gpu, record

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.store.history import HistoryWriter


def write_gpu_history(folder: RunFolder, seconds: int, gpus: int = 8, every_s: int = 5) -> None:
    """Varying loads; device 5 was throttled for the last five minutes."""
    start = NOW.timestamp() - seconds

    def write(writer: HistoryWriter) -> None:
        for second in range(0, seconds + 1, every_s):
            left = seconds - second
            samples = []
            for index in range(gpus):
                slow = index == 5 and left < 300
                load = 70.0 if slow else 92 + 6 * math.sin(second / 40 + index)
                samples.append(
                    gpu(
                        index,
                        util_percent=load,
                        mem_used_bytes=int((61 - 8 * (left > 600)) * GIB),
                        power_w=390.0 if slow else 560 + load / 2,
                        temperature_c=88.0 if slow else 60.0 + index + 3 * math.sin(second / 90),
                    )
                )
            writer.add(start + second, 1, [], samples)

    record(folder.history_db, ("devices", seconds, gpus, every_s), write)
