"""Files that were saved or loaded: calls to `torch.save`, `torch.load`, and similar functions."""

from __future__ import annotations

import functools
import json
import os
import stat
import sys
from _thread import get_ident
from time import monotonic

from .recorder import boottime_s, is_own

MAX_PATH_BYTES = 800
"""A longer path, as JSON, does not fit into a datagram with the rest."""
MAX_ENTRIES = 4096
"""The maximum number of files in a folder whose sizes are added up."""


class Saves:
    """Records what the threads of one process save and, before its first step, load."""

    def __init__(self, record, is_compiling):
        self._record = record
        self._is_compiling = is_compiling

    def wrap(self, original, target_of, loads=False):
        """`original`, with what it saves or loads recorded.

        The wrapper's own frame is taken out of the traceback of an exception that passes it
        (from Python 3.11 on): the script's stderr is what it would be.

        Args:
            original: The function that saves or loads.
            target_of: Called with its arguments, gives the path or the file.
            loads: Whether it loads.
        """
        begin, end = self._begin, self._end
        if loads:
            begin, end = self._begin_load, self._end_load

        @functools.wraps(original)
        def observed(*args, **kwargs):
            note = None
            try:
                note = begin(target_of, args, kwargs)
            except Exception as error:
                if not is_own(error):
                    raise
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                end(note, False)
                if error.__traceback__ is not None:
                    error.__traceback__ = error.__traceback__.tb_next
                raise
            try:
                end(note, True)
            except Exception as error:
                if not is_own(error):
                    raise
            return result

        return observed

    def _begin(self, target_of, args, kwargs):
        """Record that a thread started to save; None inside another save and while compiling."""
        record, thread = self._record, get_ident()
        began_s, progress = record.saving.get(thread), record.progress
        is_inside = began_s is not None and (progress is None or progress[1] <= began_s)
        if is_inside or self._is_compiling():
            return None
        target = target_of(*args, **kwargs)
        path = path_of(target)
        if path is None:
            return None
        note = (thread, target, path, monotonic(), progress and progress[0])
        record.saving[thread] = note[3]
        return note

    def _end(self, note, has_saved):
        if note is None:
            return
        thread, target, path, began_s, steps = note
        record = self._record
        record.saving.pop(thread, None)
        if has_saved:
            kept = identity_of(target, path)
            if kept is not None:
                record.has_saved(path, boottime_s(began_s), boottime_s(), steps, *kept)

    def _begin_load(self, target_of, args, kwargs):
        """The file as it is before it is read: the script may replace it right after."""
        if self._record.progress is not None or self._is_compiling():
            return None
        target = target_of(*args, **kwargs)
        path = path_of(target)
        return None if path is None else identity_of(target, path)

    def _end_load(self, loaded, has_loaded):
        if has_loaded and loaded is not None and None not in loaded:
            self._record.has_loaded(*loaded)


def _argument(position, name):
    """A function that gives one argument of a call."""
    return lambda *args, **kwargs: args[position] if len(args) > position else kwargs.get(name)


def distributed_target(*_, checkpoint_id=None, storage_writer=None, storage_reader=None, **__):
    """The folder that `torch.distributed.checkpoint` saves to, or loads from."""
    storage = storage_reader if storage_writer is None else storage_writer
    return getattr(storage, "path", None) if checkpoint_id is None else checkpoint_id


torch_target, torch_source = _argument(1, "f"), _argument(0, "f")
LOADERS = {
    "safetensors.torch": ("load_file", _argument(0, "filename")),
    "torch.distributed.checkpoint.state_dict_loader": ("load", distributed_target),
}
"""{module: (function, what it reads)}, patched once the module is imported."""

SAVERS = {
    "safetensors.torch": ("save_file", _argument(1, "filename")),
    "torch.distributed.checkpoint.state_dict_saver": ("save", distributed_target),
    "lightning.fabric.utilities.cloud_io": ("_atomic_save", _argument(1, "filepath")),
    "lightning_fabric.utilities.cloud_io": ("_atomic_save", _argument(1, "filepath")),
}
"""{module: (function, where it writes)}, patched once the module is imported."""


def path_of(target):
    """The absolute path of a path or an open file; None for memory, pipes, and unknown objects."""
    try:
        if not _is_path(target):
            # a class of the script's own may do anything when it is called
            if type(target).__module__ not in ("_io", "tempfile"):
                return None
            if not stat.S_ISREG(os.fstat(target.fileno()).st_mode):
                return None
            target = target.name
            if not isinstance(target, (str, bytes)):
                return None
        path = os.fsdecode(target)
        if "://" not in path:
            path = os.path.abspath(path)
        path.encode("utf-8")
    except (AttributeError, OSError, ValueError):
        return None
    return path if len(json.dumps(path)) <= MAX_PATH_BYTES else None


def identity_of(target, path):
    """(bytes, inode, mtime in ns) of a file or folder; None if unknown. None for a device."""
    try:
        if not _is_path(target):
            status = os.fstat(target.fileno())
            # include what is still in the file object's buffer
            return max(status.st_size, target.tell()), status.st_ino, status.st_mtime_ns
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return folder_bytes(path), status.st_ino, status.st_mtime_ns
        if stat.S_ISREG(status.st_mode):
            return status.st_size, status.st_ino, status.st_mtime_ns
    except (OSError, ValueError):
        return None, None, None
    return None


def _is_path(target):
    paths = sys.modules.get("pathlib")
    return isinstance(target, (str, bytes)) or (
        paths is not None and isinstance(target, paths.PurePath)
    )


def folder_bytes(path):
    """The total size of files directly in a folder; None if there are too many."""
    total = 0
    with os.scandir(path) as entries:
        for count, entry in enumerate(entries):
            if count >= MAX_ENTRIES:
                return None
            if entry.is_file():
                total += entry.stat().st_size
    return total
