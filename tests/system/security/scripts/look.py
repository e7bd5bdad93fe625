"""What the overview does about one training of somebody else: prints where its output goes.

Usage: look.py PID
"""

from __future__ import annotations

import sys

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignRank
from ddptop_runner.foreign.watch import ForeignBook
from ddptop_runner.host import procs

pid = int(sys.argv[1])
ticks = procs.start_ticks(pid) or 0
uid = procs.uid_of(pid)
job = ForeignJob(
    name=f"training:{pid}",
    launcher="python",
    root_pid=pid,
    root_start_ticks=ticks,
    uid=-1 if uid is None else uid,
    user="somebody",
    command="train.py",
    started_at=utc_now(),
    world_size=1,
    ranks=(ForeignRank(rank=0, local_rank=0, pid=pid, start_ticks=ticks),),
)
book = ForeignBook()
for _ in range(2):
    (view,) = book.update(Census(jobs=(job,)), [], utc_now())
sys.stdout.write(view.output or "")
