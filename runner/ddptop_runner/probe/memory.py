"""Which lines of the script hold a device's memory when it runs out (`--memory-snapshot`).

torch's allocator stores the Python stack of each allocation once it is asked to, so it is asked as
soon as the script initializes CUDA: what was allocated before would have no stack. It calls an
observer before it raises the exception. Later, the exception may have unwound the frames, or the
backward pass, that held the tensors, and the script may catch it and end with another.
"""

from __future__ import annotations

import json
import os
import pickle

from . import evidence, phases

MAX_ENTRIES = 50_000
"""Allocations and releases stored, of which the viewer draws the course: those of some steps."""
MAX_BYTES = 64 * 1024 * 1024
MAX_PLACES = 8


def arm(torch):
    """Have allocations recorded once the script initializes CUDA, if the job was started so."""
    if os.environ.get("DDPTOP_MEMORY_SNAPSHOT") == "on":
        torch.cuda._lazy_call(lambda: _begin(torch))


def _begin(torch):
    try:
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=MAX_ENTRIES
        )
        torch._C._cuda_attach_out_of_memory_observer(lambda device, *_: _ran_out(torch, device))
    except Exception:  # an unknown version of torch, or another allocator
        pass


def _ran_out(torch, device):
    """Write what is allocated; torch holds none of its locks, and raises its exception next."""
    try:
        snapshot = torch.cuda.memory._snapshot()
        evidence.write_file("memory.json", json.dumps(held(snapshot, device)).encode("ascii"))
        data = pickle.dumps(snapshot)
        if len(data) <= MAX_BYTES:
            evidence.write_file("memory.pickle", data)
    except Exception:  # the script gets its own exception as without the probe
        pass


def held(snapshot, device):
    """How many bytes of a device tensors hold, and the lines of the script that hold most.

    "" is no line: the threads of a backward pass run no Python.

    Args:
        snapshot: as from torch.cuda.memory._snapshot().
        device: the index of the device, as torch counts.
    """
    by_place: dict[str, int] = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"] if segment["device"] == device else ():
            if block["state"] == "active_allocated":
                stack = [(one["filename"], one["name"], one["line"]) for one in block["frames"]]
                place = phases.place(stack) or ""
                by_place[place] = by_place.get(place, 0) + block["size"]
    most = sorted(by_place.items(), key=lambda item: -item[1])[:MAX_PLACES]
    return {"total_bytes": sum(by_place.values()), "by_place": dict(most)}
