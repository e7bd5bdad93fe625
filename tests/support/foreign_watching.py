"""Updates of foreign jobs, as a viewer gets them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign.types import Census, ForeignView
from ddptop_runner.foreign.watch import ForeignBook

SLEEP = (sys.executable, "-c", "import time; time.sleep(1000)")
FAR = 4e9
"""A Unix time later than everything that a test does."""


def look(book: ForeignBook, census: Census, follow: str | None = None, **changes: Any) -> Any:
    """The view of the watched job, or of the only one."""
    views = book.update(
        census, changes.get("gpus", []), changes.get("now", utc_now()), follow=follow
    )
    if follow is None:
        (view,) = views
        return view
    return next(view for view in views if view.job == follow)


def memory_of(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_rank(view: ForeignView) -> Any:
    """Its first rank, as shown."""
    return view.snapshot.ranks[0]
