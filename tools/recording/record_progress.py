"""Record what the hang watch sees of real runs: `record_progress.py FOLDER KIND...`.

Starts two ranks of progress_jobs.py with the probe, hears it as the supervisor does, and writes
the ranks' progress once a second to FOLDER/KIND.jsonl.gz. `--python` names an interpreter that has
accelerate and lightning.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.judge.hangs.verdict import RankProgress
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.model.probe_message import decode_message
from ddptop_runner.job.ranks import OwnRanks
from tests.support.builders import put_exit

INJECT = Path(__file__).parents[2] / "runner" / "ddptop_runner" / "probe" / "inject"
JOBS = Path(__file__).with_name("progress_jobs.py")
WORLD = 2
LIMIT_S = 180.0
HUNG_S = 15.0
"""Of a run that hangs, so much of its hang is recorded."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(kind: str, python: str, probe_socket: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    port = free_port()
    ranks = []
    for rank in range(WORLD):
        env = {
            **os.environ,
            "PYTHONPATH": str(INJECT),
            "DDPTOP_JOB_ID": "record@1",
            "DDPTOP_PROBE_SOCK": probe_socket,
            "DDPTOP_ATTEMPT": "0",
            "DDPTOP_STACKS_DIR": str(folder / "stacks"),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(WORLD),
            "LOCAL_WORLD_SIZE": str(WORLD),
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "record",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{rank}"),
        }
        log = (folder / f"rank-{rank}.log").open("wb")
        command = [python, "-u", str(JOBS), kind]
        ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder))
    return ranks


def fields(progress: RankProgress) -> dict[str, object]:
    """All that is not as by default."""
    plain = RankProgress(0, alive=False, paused=False, steps=0, since_progress_s=-1.0)
    found = {}
    for field in dataclasses.fields(progress):
        value = getattr(progress, field.name)
        if value != getattr(plain, field.name) or field.name in ("rank", "steps"):
            found[field.name] = round(value, 3) if isinstance(value, float) else value
    return found


def record(kind: str, python: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="record-") as name:
        folder = Path(name)
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        endpoint.bind(str(folder / "probe.sock"))
        began_s = boottime_s()
        processes = start(kind, python, str(folder / "probe.sock"), folder)
        table = OwnRanks(WORLD, began_s)
        for rank, process in enumerate(processes):
            table.started(rank, rank, process.pid)
        usage, lines, tick_s = HostUsage(), [], began_s
        while boottime_s() - began_s < LIMIT_S and table.alive():
            tick_s += 1.0
            while boottime_s() < tick_s:
                time.sleep(0.05)
                while True:
                    try:
                        message = decode_message(endpoint.recv(8192))
                    except BlockingIOError:
                        break
                    if message is not None:
                        table.add(message, 0)
            for rank, process in enumerate(processes):
                if process.poll() is not None and table[rank].exit is None:
                    at_s = boottime_s()
                    put_exit(table[rank], RankExit(rank, process.pid, process.returncode, at_s))
            used = usage.look({record.rank: record.pid for record in table.alive()})
            for one in table:
                one.usage = used.get(one.rank)
            now_s = boottime_s()
            seen = table.progress(now_s)
            progress = [fields(one) for one in seen]
            lines.append({"t": round(now_s - began_s, 3), "ranks": progress})
            silent_s = min(one.since_progress_s for one in seen)
            if kind.startswith("hang") and any(one.steps for one in seen) and silent_s > HUNG_S:
                break
        for process in processes:
            process.kill()
            process.wait()
        endpoint.close()
        codes = [process.returncode for process in processes]
        for rank in range(WORLD):
            tail = (folder / f"rank-{rank}.log").read_text(errors="replace").splitlines()[-3:]
            if codes[rank] not in (0, -9):
                print(f"  rank {rank} ended with {codes[rank]}:", *tail, sep="\n    ")
    target.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(target / f"{kind}.jsonl.gz", "wb", mtime=0) as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    phases = sorted({str(rank.get("phase")) for line in lines for rank in line["ranks"]})
    print(f"{kind}: {len(lines)} looks, ended with {codes}, phases {', '.join(phases)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--python", default=sys.executable)
    asked = parser.parse_args()
    for kind in asked.kinds:
        record(kind, asked.python, asked.folder)


if __name__ == "__main__":
    main()
