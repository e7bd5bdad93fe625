"""The probe in real processes, with an empty `torch`: start, imports, sockets, signals, the end."""

from __future__ import annotations

import ast
import itertools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.probe_ranks import INJECT, Rank, same_with_and_without

from ddptop_runner import probe

FOLDER = Path(probe.__path__[0])


BARE_PYTHON = getattr(sys, "_base_executable", sys.executable)


"""The interpreter beneath the virtual environment, which has no ddptop."""


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.name)
def test_the_probe_is_python_3_8(file):
    ast.parse(file.read_text(), feature_version=(3, 8))


def test_sitecustomize_uses_nothing_that_python_2_cannot_read():
    tree = ast.parse((INJECT / "sitecustomize.py").read_text())
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        assert not isinstance(node, newer)
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            assert not (node.returns or arguments.kwonlyargs or arguments.posonlyargs)
        if isinstance(node, ast.Raise):
            assert node.cause is None
    assert [entry.name for entry in INJECT.iterdir() if entry.suffix == ".py"] == [
        "sitecustomize.py"
    ]


@pytest.mark.parametrize("name", ["python2.7", "python3.6", "python3.8", "python3.13"])
def test_other_pythons_start(stub_torch, name):
    python = shutil.which(name)
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no {name} here")
    assert stub_torch.run("-c", "import torch; print(1)", python=python) == (0, "1\n", "")


# --- sitecustomize ---------------------------------------------------------------------------


SITE_REPORT = """
import os, sys
try:
    import sitecustomize
    print(sitecustomize.__file__, sorted(vars(sitecustomize)))
except ImportError as error:
    print(repr(error))
print(sys.path)
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ANSWER = 42\nprint('mine')", "mine"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise ValueError('boom')", "Error in sitecustomize"),
        ("def broken(", "Error in sitecustomize"),
    ],
)
def test_the_users_own_sitecustomize_runs_as_without_the_probe(rank, text, says):
    rank.write("own/sitecustomize.py", text)
    path = os.pathsep.join([str(INJECT), str(rank.folder / "own")])
    status, out, err = same_with_and_without(
        rank, "-c", SITE_REPORT + "print('end')", PYTHONPATH=path
    )
    assert says in out + err
    assert status == 0 or "ANSWER" not in text


def test_children_are_probed_as_well(stub_torch):
    script = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    child = "import sys; print('_ddptop_probe' in sys.modules, sys.path)"
    status, out, _ = stub_torch.run("-c", script, child)
    assert status == 0 and out.startswith("True") and str(INJECT) not in out


def test_outside_a_job_nothing_is_loaded(stub_torch):
    del stub_torch.env["DDPTOP_PROBE_SOCK"]
    report = "import torch, sys; print([n for n in sys.modules if 'ddptop' in n], sys.meta_path)"
    _, out, _ = stub_torch.run("-c", report, python=BARE_PYTHON)
    assert out.startswith("[] ") and "ddptop" not in out


# --- imports ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "raise ImportError('libcudart.so.12: cannot open')",
        "raise RuntimeError('bad')",
        "1 / 0",
        "(",
    ],
)
def test_a_torch_that_fails_to_import_reads_the_same(stub_torch, text):
    stub_torch.write("stub/torch.py", text)
    status, _, err = same_with_and_without(stub_torch, stub_torch.write("s.py", "import torch"))
    assert status == 1 and "Traceback" in err


def test_asking_for_torch_before_importing_it_does_not_disarm(stub_torch):
    script = (
        "import importlib.util as u; assert u.find_spec('torch') and u.find_spec('torch')\n"
        "import torch\nassert 'exec_module' not in vars(torch.__loader__)\n"
        "print(type(torch.__loader__).__name__)"
    )
    status, out, _ = stub_torch.run("-c", script)
    assert (status, out) == (0, "SourceFileLoader\n")
    assert [message.rank for message in stub_torch.receiver.messages][:1] == [3]


def test_rank_reports_as_soon_as_it_has_torch(stub_torch, wait_until):
    process = stub_torch.start("-c", "import torch; input()")
    wait_until(lambda: stub_torch.receiver.messages, what="a first datagram")
    hello = stub_torch.receiver.messages[0]
    assert (hello.pid, hello.rank, hello.local_rank, hello.world_size) == (process.pid, 3, 1, 4)
    assert (hello.job, hello.attempt, hello.seq, hello.final) == ("cats@1f2e", 2, 1, False)
    assert hello.steps is None and hello.last_step_t is None
    process.communicate("\n")
    assert stub_torch.receiver.last(process.pid).steps is None


def test_only_the_rank_speaks_of_all_its_processes(stub_torch):
    script = stub_torch.write(
        "family.py",
        "import multiprocessing, os, subprocess, sys, torch\n"
        "def work(): import torch, time; time.sleep(0.3)\n"
        "if __name__ == '__main__':\n"
        "    for method in ('fork', 'spawn'):\n"
        "        child = multiprocessing.get_context(method).Process(target=work)\n"
        "        child.start(); child.join(); assert child.exitcode == 0\n"
        "    subprocess.run([sys.executable, '-c', 'import torch, time; time.sleep(0.3)'])\n"
        "    print(os.getpid())\n",
    )
    status, out, err = stub_torch.run(script)
    assert (status, err) == (0, "")
    assert {message.pid for message in stub_torch.receiver.messages} == {int(out)}


def test_a_process_that_runs_another_program_in_its_place_stays_the_rank(stub_torch):
    script = (
        "import os, sys, torch; os.execv(sys.executable, [sys.executable, '-c', 'import torch'])"
    )
    process = stub_torch.start("-c", script)
    process.communicate()
    assert len([m for m in stub_torch.receiver.messages if m.seq == 1]) >= 1
    assert stub_torch.receiver.last(process.pid).rank == 3


def test_a_process_without_a_rank_is_silent(stub_torch):
    del stub_torch.env["RANK"]
    assert stub_torch.run("-c", "import torch, time; time.sleep(0.4)")[0] == 0
    assert stub_torch.receiver.messages == []


# --- report ----------------------------------------------------------------------------------


REPORT = """
import math, os, ddptop
from decimal import Decimal
from fractions import Fraction
class Hostile:
    def __float__(self): raise RuntimeError
    def __bool__(self): raise RuntimeError
    def __eq__(self, other): raise RuntimeError
for step in range(5):
    ddptop.report(loss=2.0 - step / 4, step=step, total=100, lr=Fraction(1, 4), text="x",
                  flag=True, nothing=None, hostile=Hostile(), nan=math.nan, huge=10**400,
                  whole=3, pair=(1, 2))
ddptop.report(); ddptop.report(None); ddptop.report(loss="0.1", step="x", total=-1)
ddptop.report(step=float("nan"), total=float("inf"), loss=Hostile())
print(ddptop.__name__, ddptop.report.__name__)
"""


def check_report(rank: Rank, pid: int) -> None:
    last = rank.receiver.last(pid)
    assert (last.loss, last.loss_state, last.loss_source) == (1.0, "ok", "api")
    assert (last.steps, last.global_step, last.total_steps) == (5, 4, 100)
    assert (last.loss_sum, last.loss_n, last.loss_step) == (7.5, 5, 5)
    assert last.metrics == {"lr": 0.25, "nan": None, "whole": 3.0}
    assert last.rank == 3 and last.last_step_t is not None


@pytest.mark.parametrize("python", [sys.executable, BARE_PYTHON], ids=["package", "stand-in"])
def test_report_calls_count_as_progress(rank, python):
    process = rank.start("-c", REPORT, python=python)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "ddptop report\n", "")
    check_report(rank, process.pid)


@pytest.mark.parametrize(
    ("arguments", "metrics"),
    [
        ("global_step=4, total_steps=90", {}),
        ("step=4, total=90, global_step=7", {"global_step": 7.0}),
    ],
)
def test_report_takes_the_names_that_json_has_for_step_and_total(rank, arguments, metrics):
    script = f"import ddptop, os; print(os.getpid()); ddptop.report({arguments})"
    code, out, err = rank.run("-c", script)
    assert (code, err) == (0, "")
    last = rank.receiver.last(int(out))
    assert (last.global_step, last.total_steps, last.metrics) == (4, 90, metrics)


def test_forked_child_starts_empty_and_its_last_message_arrives(rank):
    script = (
        "import ddptop, multiprocessing, os, sys\n"
        "def work(): ddptop.report(loss=8.0, step=1); print(os.getpid(), flush=True)\n"
        "for step in range(5): ddptop.report(loss=1.0, step=step)\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\n"
        "child.start(); child.join(); sys.exit(child.exitcode)"
    )
    process = rank.start("-c", script)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    child, parent = rank.receiver.last(int(out)), rank.receiver.last(process.pid)
    assert (child.steps, child.loss_n, child.loss) == (1, 1, 8.0)
    assert rank.receiver.of(int(out))[0].seq == 1
    assert (parent.steps, parent.loss_n, parent.loss) == (5, 5, 1.0)


# --- socket ----------------------------------------------------------------------------------


STEPS_FROM_STDIN = """
import sys, ddptop
for line in sys.stdin:
    ddptop.report(loss=float(line), step=int(float(line)))
"""


def test_returning_supervisor_gets_all_reports(rank, wait_until):
    process = rank.start("-c", STEPS_FROM_STDIN)
    assert process.stdin is not None

    def say(value: int) -> None:
        process.stdin.write(f"{value}\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]

    say(1)
    wait_until(lambda: any(m.loss_n for m in rank.receiver.messages), what="the first step")
    rank.receiver.close()
    rank.receiver.raw.clear()
    say(2)
    say(3)
    rank.receiver.bind()
    wait_until(lambda: rank.receiver.messages, what="a message on the new socket")
    wait_until(lambda: rank.receiver.messages[-1].steps == 3, what="step 3")
    lows = [m.loss_min for m in rank.receiver.messages if m.loss_min is not None]
    assert min(lows) == 2.0
    process.communicate()
    assert rank.receiver.last(process.pid).loss_n == 3


@pytest.mark.parametrize("path", ["/nonexistent/probe.sock", "", "/tmp", "/" + "x" * 300])
def test_a_missing_socket_is_no_matter(stub_torch, path):
    script = "import sys, torch, ddptop; ddptop.report(loss=1.0); sys.exit(5)"
    assert stub_torch.run("-c", script, DDPTOP_PROBE_SOCK=path) == (5, "", "")


def test_a_full_queue_never_blocks(stub_torch):
    full = stub_torch.folder / "full.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(full))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
            filler.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    filler.sendto(b"x", str(full))
        script = "import torch, ddptop; ddptop.report(loss=1.0)"
        assert stub_torch.run("-c", script, DDPTOP_PROBE_SOCK=str(full)) == (0, "", "")


def test_at_most_four_datagrams_a_second(rank):
    script = (
        "import time, ddptop\nend = time.monotonic() + 1.2\n"
        "step = 0\nwhile time.monotonic() < end:\n"
        "    step += 1; ddptop.report(loss=1.0, step=step); time.sleep(0.001)\n"
        "print(step)"
    )
    status, out, _ = rank.run("-c", script)
    stamps = [message.t for message in rank.receiver.messages[:-1]]
    assert status == 0 and rank.receiver.messages[-1].steps == int(out)
    assert len(stamps) >= 2 and all(b - a > 0.24 for a, b in itertools.pairwise(stamps))
