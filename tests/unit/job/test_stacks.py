"""Stacks as displayed."""

from __future__ import annotations

from ddptop.sources.evidence import readable, together

PACKAGES = "/opt/env/lib/python3.11/site-packages"
RUNNER = f"{PACKAGES}/ddptop_runner"
RANK = f"""Thread 0x00007f34d02686c0 (most recent call first):
  File "{RUNNER}/probe/sender.py", line 306 in _send_until_stopped

Thread 0x00007f34d0000000 (most recent call first):
  File "/opt/env/lib/python3.11/threading.py", line 331 in wait
  File "/home/ann/code/data/queue.py", line 12 in fetch

Current thread 0x00007f34f2befb80 (most recent call first):
  File "{PACKAGES}/torch/_tensor.py", line 623 in backward
  File "{RUNNER}/probe/hooks.py", line 146 in backward
  File "/home/ann/code/model.py", line 40 in training_step
  File "{PACKAGES}/lightning/loop.py", line 7 in run
  File "{PACKAGES}/lightning/trainer.py", line 8 in fit
  File "/home/ann/code/train.py", line 9 in <module>
  File "{RUNNER}/agent/zygote.py", line 451 in run_script"""


def test_the_scripts_frames_come_first_and_ddptops_are_left_out() -> None:
    assert readable(RANK, "/home/ann/code").splitlines() == [
        "at      model.py:40 in training_step",
        "        ... 2 library frames",
        "        train.py:9 in <module>",
        "inside  torch/_tensor.py:623 in backward",
        "",
        "another thread",
        "at      data/queue.py:12 in fetch",
        "inside  threading.py:331 in wait",
    ]


def test_what_py_spy_writes_is_read_too_and_other_lines_stay() -> None:
    text = f"""Process 12: python train.py

Thread 12 (active): "MainThread"
    poll (libc.so.6)
    barrier ({PACKAGES}/torch/distributed/distributed_c10d.py:5356)
    <module> (/home/bob/train.py:38)
Thread 14 (idle): "writer"
    wait (/usr/lib/python3.11/threading.py:331)
--- data loader process 15 ---
Thread 15 (active): "MainThread"
    __getitem__ (/home/bob/data.py:5)"""
    assert readable(text).splitlines() == [
        "at      /home/bob/train.py:38 in <module>",
        "inside  poll (libc.so.6)",
        "        torch/distributed/distributed_c10d.py:5356 in barrier",
        "",
        'another thread: "writer"',
        "inside  threading.py:331 in wait",
        "--- data loader process 15 ---",
        "at      /home/bob/data.py:5 in __getitem__",
    ]


def test_the_order_and_the_numbers_of_threads_do_not_separate_ranks() -> None:
    first, second, main = RANK.split("\n\n")
    third = first.replace("d02686c0", "d0ffffff").replace(f"{RUNNER}/probe/sender", "/x/worker")
    one = "\n\n".join((first, second, third, main))
    other = "\n\n".join((third, second.replace("d0000000", "e0000000"), main))
    assert readable(one) == readable(other)
    assert "/x/worker.py:306" in readable(one)


def test_a_reason_instead_of_a_stack_stays_as_it_is() -> None:
    assert readable("no stacks: the rank has ended") == "no stacks: the rank has ended"


def test_ranks_at_one_place_share_a_section_behind_the_one_that_is_elsewhere() -> None:
    stacks = [
        (f"rank {rank}", f"pid {rank}", "there" if rank == 1 else "here") for rank in range(4)
    ]
    assert together(stacks) == [("rank 1   pid 1", "there"), ("ranks 0, 2, 3", "here")]
