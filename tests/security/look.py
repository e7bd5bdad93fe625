"""What the overview does about one training of somebody else: prints where its output goes.

Usage: look.py PID
"""

from __future__ import annotations

import sys

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign.census import HostCensus
from ddptop_runner.foreign.watch import ForeignBook
from ddptop_runner.host import procs

pid = int(sys.argv[1])
taker = HostCensus()
taker.pin(pid, procs.start_ticks(pid) or 0)
census = taker.scan()
job = next(job for job in census.jobs if pid in job.pids)
book = ForeignBook()
for _ in range(2):
    views = book.update(census, [], utc_now(), follow=job.name)
(view,) = [one for one in views if one.job == job.name]  # others may train here as well
sys.stdout.write(view.output or "")
