"""The bundled training's steps, record, and faults, without torch: ranks that meet and report.

For jobs whose faults come from outside, or end a rank by means other than torch's.
"""

import argparse
import json
import math
import os
import sys
import time
import types
from pathlib import Path

import ddptop
from meeting import Meeting  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).parents[3] / "ddptop" / "demo"))
sys.modules["torch"] = types.ModuleType("torch")  # two of the faults import it
sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
sys.modules["torch"].distributed = sys.modules["torch.distributed"]  # type: ignore[attr-defined]
sys.modules["torch.distributed"].new_group = lambda: None  # type: ignore[attr-defined]
import misbehave  # type: ignore[import-not-found] # noqa: E402

del sys.modules["torch"], sys.modules["torch.distributed"]

parser = argparse.ArgumentParser()
parser.add_argument("--record", type=Path)
parser.add_argument("--fault-file")
parser.add_argument("--steps", type=int)
parser.add_argument("--pause", type=float)
parser.set_defaults(fault=None, fault_rank=None, fault_step=None)
options, _ = parser.parse_known_args()

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
faults, meeting = misbehave.Faults(options, rank), Meeting()
options.record.mkdir(parents=True, exist_ok=True)
poisoned = False
with (options.record / f"rank-{rank}.jsonl").open("a", buffering=1) as record:
    for step in range(1, options.steps + 1):
        poisoned = faults.happen(step) or poisoned
        try:
            meeting.meet()
        # a rank that loses its connection exits after the rank that died, on any machine
        except RuntimeError:
            time.sleep(1.0)
            raise
        loss = math.nan if poisoned else (1 + rank) / step
        ddptop.report(loss=loss)
        line = {"attempt": attempt, "step": step, "loss": loss, "at": time.time()}
        record.write(json.dumps(line) + "\n")
        if step % 10 == 0:
            print(f"step {step}/{options.steps} loss {loss:.4f}", flush=True)
        time.sleep(options.pause)
