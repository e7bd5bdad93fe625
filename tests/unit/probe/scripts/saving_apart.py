"""Saves by modules that are imported later, each into a folder of its own when a line comes in."""

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

state = {"weights": torch.ones(10)}
dcp.save(state, checkpoint_id="dcp/dcp")
sys.stdin.readline()
dcp.async_save(state, checkpoint_id="async/async").result()
sys.stdin.readline()
import safetensors.torch  # noqa: E402

Path("s").mkdir()
safetensors.torch.save_file(state, "s/m.st")
safetensors.torch.load_file("s/m.st")
dcp.load(state, checkpoint_id="dcp/dcp")
