"""`ddptop export`: a job's recorded figures as CSV, JSON, or TensorBoard files."""

from __future__ import annotations

import sys
from pathlib import Path

from ddptop.export.series import rows, write_csv, write_tensorboard
from ddptop.output import info, put_json
from ddptop_runner.base.errors import UsageError
from ddptop_runner.job.registry import resolve
from ddptop_runner.store.history_reader import HistoryReader


def run(job: str | None, *, as_csv: bool, as_json: bool, folder: str | None) -> int:
    """Write the figures to stdout or to files.

    Raises:
        UsageError: not exactly one format is given, or TensorBoard is missing.
        DdptopError: the history cannot be read, or the folder cannot be written.
    """
    if as_csv + as_json + (folder is not None) != 1:
        raise UsageError("export needs one format", "use --csv, --json, or --tensorboard DIR")
    found = rows(HistoryReader(resolve(job).folder.history_db))
    if folder is not None:
        number = write_tensorboard(found, Path(folder))
        info(f"ddptop: wrote {number:,} values; view them with tensorboard --logdir {folder}")
    elif as_csv:
        write_csv(found, sys.stdout)
    else:
        for row in found:
            put_json(row)
    return 0
