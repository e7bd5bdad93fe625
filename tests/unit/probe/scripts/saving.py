"""Saves in all ways that a wrapper around torch.save could spoil, and fails in the end."""

import copy
import hashlib
import inspect
import io
import os
import pickle
import sys
import traceback
import warnings
from pathlib import Path

import torch

warnings.simplefilter("error")
torch.manual_seed(1)
assert torch.save is torch.serialization.save
assert pickle.loads(pickle.dumps(torch.save)) is torch.save is copy.deepcopy(torch.save)
print(pickle.dumps(torch.save), inspect.signature(torch.save), torch.save.__qualname__)
print(inspect.getsource(torch.save)[:40], torch.save.__module__, torch.save.__doc__[:40])
print(repr(torch.save)[:20], callable(torch.save), inspect.isfunction(torch.save))


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Unwilling:
    def __reduce__(self):
        raise LookupError("not me")


def broken():
    torch.save({"a": Unwilling()}, "broken.pt")


state = {"weights": torch.randn(100), "step": 3}
print(torch.save(state, "a.pt"), digest("a.pt"))
with Path("b.pt").open("wb") as file:
    torch.save(state, file, _use_new_zipfile_serialization=False)
    print(file.tell())
memory = io.BytesIO()
torch.save(obj=state, f=memory)
print(len(memory.getvalue()), torch.load("a.pt")["weights"].sum().item())
assert torch.load is torch.serialization.load
print(inspect.signature(torch.load), torch.load.__qualname__)
saves = (broken, lambda: torch.save(state), lambda: torch.save(state, 5, no=1))
for fails in (*saves, lambda: torch.load("missing.pt"), lambda: torch.load()):
    try:
        fails()
    except Exception:
        print(traceback.format_exc())

theirs = torch.save


def patched(*args, **kwargs):
    print("mine: patched", args[1:], kwargs)
    return theirs(*args, **kwargs)


torch.save = patched
torch.save(state, "c.pt")
torch.save = theirs
sys.stdout.flush()
child = os.fork()
if not child:
    torch.save(state, "child.pt")
    print("child", digest("child.pt"), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], torch.randn(1).item())
torch.save(state, "twice.pt")
sys.stdout.flush()
torch.save(state, "nowhere/at/all.pt")
