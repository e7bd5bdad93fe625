"""`ddptop.checkpoint_requested`, from the package and from the probe's stand-in; save signals."""

from __future__ import annotations

import sys

import pytest

BARE_PYTHON = getattr(sys, "_base_executable", sys.executable)

ASK = """
import os, ddptop
flag = os.environ.get("DDPTOP_CHECKPOINT_FILE", "/nowhere/flag")
said = [ddptop.checkpoint_requested()]
for request in ("one", "one", "two"):
    if flag != "/nowhere/flag":
        open(flag, "w").write(request)
    said += [ddptop.checkpoint_requested(), ddptop.checkpoint_requested()]
print(*map(int, said))
"""


@pytest.mark.parametrize("has_probe", [True, False], ids=["with probe", "without"])
@pytest.mark.parametrize("python", [sys.executable, BARE_PYTHON], ids=["package", "stand-in"])
def test_each_request_is_answered_once(rank, python, has_probe, tmp_path):
    if python == BARE_PYTHON and not has_probe:
        pytest.skip("neither the package nor a probe: there is no ddptop to import")
    rank.env["DDPTOP_CHECKPOINT_FILE"] = str(tmp_path / "flag")
    answer = rank.run("-c", ASK, python=python, has_probe=has_probe)
    assert answer == (0, "0 1 0 0 0 1 0\n", "")


def test_outside_a_job_nothing_is_asked_for(rank):
    assert rank.run("-c", ASK, has_probe=False) == (0, "0 0 0 0 0 0 0\n", "")


HANDLERS = """
import functools, signal, ddptop
def handler(number, frame): pass
def ending(number, frame): pass
ending.__module__ = "{module}"
signal.signal(signal.SIGUSR1, {first})
signal.signal(signal.SIGUSR2, {second})
ddptop.report(loss=1.0, step=1)
"""


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("handler", "signal.SIG_DFL", [10]),
        ("signal.SIG_IGN", "handler", [12]),
        ("handler", "functools.partial(handler)", [10, 12]),
        ("ending", "handler", [12]),
        ("functools.partial(ending)", "signal.SIG_DFL", []),
    ],
)
@pytest.mark.parametrize("module", ["torch.distributed.elastic.multiprocessing.api", "submitit"])
def test_handlers_known_to_end_the_process_are_not_reported(rank, module, first, second, told):
    process = rank.start("-c", HANDLERS.format(module=module, first=first, second=second))
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert rank.receiver.last(process.pid).save_signals == told
