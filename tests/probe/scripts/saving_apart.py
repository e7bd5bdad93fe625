"""Saves by modules that are imported later, each into a folder of its own."""

import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

state = {"weights": torch.ones(10)}
dcp.save(state, checkpoint_id="dcp/dcp")
time.sleep(0.3)
dcp.async_save(state, checkpoint_id="async/async").result()
time.sleep(0.3)
import safetensors.torch  # noqa: E402

Path("s").mkdir()
safetensors.torch.save_file(state, "s/m.st")
