"""What the rank is doing, and where in the script, from the stack of the training thread.

While steps continue, nothing is read. After QUIET_S without a step, the stack is read at most four
times a second. A wait counts only if it lasts, because steps and evaluations often wait briefly.

The innermost frame that is recognized decides, with exceptions. What a data loader calls belongs to
the data loader; what the import of a package calls has no meaning. Waiting (for data, in a
collective) is separate from its purpose, so that an evaluation that sometimes gathers its results
is still an evaluation. Frames of torch.compile around any compiled call have no meaning.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig

from .recorder import boottime_s

MAX_FRAMES = 400
"""Imports can be this deep; the script is at the bottom."""
MAX_LENGTH = 120

LOADERS = ("torch/utils/data/", "torchdata/", "nvidia/dali/")

COLLECTIVES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/rendezvous.py",
    "horovod/torch/mpi_ops.py",
)
COLLECTIVES_WITHIN = {
    "_verify_param_shape_across_processes": "torch/distributed/utils.py",
    "_sync_module_states": "torch/distributed/utils.py",
    "_sync_params_and_buffers": "torch/distributed/utils.py",
    "_sync_buffers": "torch/nn/parallel/distributed.py",
}
"""Functions that wait below Python, by file."""

COMPILERS = (
    "torch/_dynamo/",
    "torch/_inductor/",
    "torch/utils/cpp_extension.py",
    "triton/compiler/",
    "triton/backends/",
)
RUNS_COMPILED = (
    "torch/_dynamo/eval_frame.py",
    "torch/_dynamo/external_utils.py",
    "torch/_dynamo/decorators.py",
    "torch/_dynamo/utils.py",
    "torch/_dynamo/compiled_autograd.py",
    "torch/_inductor/output_code.py",
    "torch/_inductor/codecache.py",
    "torch/_inductor/utils.py",
    "torch/_inductor/cudagraph",
    "torch/_inductor/runtime/",
)
"""Parts of compilers that are on the stack while compiled code runs."""

STORES = ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/")

FRAMEWORKS = (
    *("lightning/", "pytorch_lightning/", "transformers/", "accelerate/", "deepspeed/", "trl/"),
    *("composer/", "ignite/", "mmengine/", "fairseq/", "ultralytics/", "fastai/", "torchtune/"),
    "ddptop/",
)
"""Installed packages whose function names mean the same as a script's own."""

EVALUATES = frozenset(
    (
        *("eval", "evals", "evaluate", "evaluation", "evaluating", "val", "validate"),
        *("validation", "validating", "predict", "prediction", "inference"),
    )
)
TESTS = frozenset(
    ("test", "test_loop", "test_epoch", "test_step", "test_model", "run_test", "do_test")
)
STORE_VERBS = frozenset(("save", "saving", "write", "dump", "store", "load", "restore", "resume"))
STORE_NOUNS = frozenset(
    (
        *("checkpoint", "checkpoints", "ckpt", "ckpts", "model", "models", "state", "states"),
        *("snapshot", "weights", "pretrained", "optimizer"),
    )
)
STORE_NAMES = frozenset(("save", "from_pretrained"))
NEITHER = frozenset(
    (
        *("train", "training", "trainer", "fit", "main", "should", "is", "has", "maybe", "if"),
        *("check", "get", "set", "parse", "init", "build", "create", "config", "args", "split"),
        *("loader", "loaders", "dataloader", "dataloaders", "data", "dataset", "datasets"),
    )
)
"""A function with such a word in its name has no meaning: it contains the rest, or prepares it."""

WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+|[0-9]+")

_STDLIB = tuple(
    {
        os.path.dirname(os.__file__) + os.sep,
        sysconfig.get_paths()["stdlib"] + os.sep,
        sysconfig.get_paths()["platstdlib"] + os.sep,
    }
)
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGES = ("/site-packages/", "/dist-packages/")
_has_lock = getattr(sys, "_is_gil_enabled", lambda: True)


def frames_of(thread):
    """[(file, function, line)] of a thread's stack, innermost first; [] if there is none."""
    if not _has_lock():  # the frames would change during reading
        return []
    frame = sys._current_frames().get(thread)
    found: list[tuple] = []
    while frame is not None and len(found) < MAX_FRAMES:
        code = frame.f_code
        found.append((code.co_filename, code.co_name, frame.f_lineno))
        # one frame at a time is kept alive, and never longer than this loop
        frame = frame.f_back
    return found


def recognize(frames):
    """What a stack means: (waits, does).

    `waits` is "data", "collective" or None: what the thread waits for, at the innermost. `does` is
    "compile", "checkpoint", "evaluation" or None: what that is a part of.

    Args:
        frames: [(file, function, ...)], innermost first.
    """
    waits = does = None
    for frame in frames:
        kind = kind_of(frame[0], frame[1])
        if kind == "import":
            waits = does = None
        elif kind == "data":
            waits, does = "data", None
        elif kind == "collective":
            if waits is None and does is None:
                waits = "collective"
        elif kind is not None and does is None:
            does = kind
    return waits, does


def place(frames):
    """`file:line in function` of the innermost frame of the user's code; None if there is none.

    If all code is installed, the innermost frame that is neither torch's nor ddptop's.
    """
    # code without a file is the script's if everything else is called from it, as with -c
    typed = frames[-1][0] if frames and frames[-1][0].startswith("<") else None
    is_whole = len(frames) < MAX_FRAMES
    for is_wanted in (is_script, is_library) if is_whole else (is_script,):
        for file, function, line in frames:
            if is_wanted(file) and (file == typed or not file.startswith("<")):
                text = "{}:{} in {}".format(os.path.basename(file), line, function)
                return "".join(c if c.isprintable() else "?" for c in text)[:MAX_LENGTH]
    return None


@functools.lru_cache(maxsize=4096)
def kind_of(file, function):
    """The meaning of one frame: a phase, "import", or None."""
    inner = _within_packages(file)
    if inner is not None and not is_script(file):
        if function == "<module>":
            return "import"
        if inner.startswith(LOADERS):
            return "data"
        if inner.startswith(COLLECTIVES) or inner == COLLECTIVES_WITHIN.get(function):
            return "collective"
        if inner.startswith(COMPILERS) and not inner.startswith(RUNS_COMPILED):
            return "compile"
        if inner.startswith("torch/_inductor/runtime/") and (
            "benchmark" in function or "precompile" in function
        ):
            return "compile"
        if inner.startswith(STORES):
            return "checkpoint"
        if not inner.startswith(FRAMEWORKS):
            return None
        if inner.endswith(("/evaluation_loop.py", "/prediction_loop.py")):
            return "evaluation"
    elif not is_script(file):
        return None
    return _kind_of_name(function)


def _kind_of_name(function):
    """The meaning of a function's name in a script or framework."""
    words = [word.lower() for word in WORD.findall(function)]
    if not NEITHER.isdisjoint(words):
        return None
    if function in STORE_NAMES or not (
        STORE_VERBS.isdisjoint(words) or STORE_NOUNS.isdisjoint(words)
    ):
        return "checkpoint"
    if function in TESTS or not EVALUATES.isdisjoint(words):
        return "evaluation"
    return None


def is_script(file):
    """Whether a file belongs to the user's own code."""
    inner = _within_packages(file)
    if inner is not None:
        return inner.startswith(_main_package())
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or "\0"
    return not (
        file.startswith((_OWN, *_STDLIB, compiled, "<frozen", "<eval_with_key", "<__"))
        or "/torchinductor_" in file
    )


def is_library(file):
    """Whether a file belongs to an installed package other than torch and ddptop."""
    inner = _within_packages(file)
    return inner is not None and not inner.startswith(("torch/", "triton/", "ddptop_runner/"))


def _within_packages(file):
    """A file's path relative to the folder of installed packages; None for any other file."""
    for folder in _PACKAGES:
        if folder in file:
            return file.rpartition(folder)[2]
    return None


def _main_package():
    """The folder of the package that runs, as with `-m package.train`; otherwise no folder."""
    package = getattr(sys.modules.get("__main__"), "__package__", None) or ""
    name = package.partition(".")[0]
    return name + "/" if name and name not in ("torch", "ddptop_runner") else "\0"


QUIET_S = 1.0
WAIT_LOOK_S = 0.2
"""Waiting for data this long, over two reads, is a phase."""
WAIT_S = 2.0
"""A collective, or a wait inside an evaluation or a checkpoint, is a phase after this time."""
EVALUATION_BATCHES = 2
"""This many batches without any backward pass since the last step are an evaluation."""


class Phases:
    """The phase of one process."""

    def __init__(self, record):
        self._record = record
        self.phase = None
        self.since_t = None
        """CLOCK_BOOTTIME."""
        self.stands_at = None
        self._waits_for = None
        self._waits_since_s = 0.0

    def look(self, now_s, collectives=None):
        """Read the stack once; returns whether phase or place have changed.

        Args:
            now_s: the monotonic time.
            collectives: how far the process groups are; a wait ends where that changes.
        """
        before = (self.phase, self.since_t, self.stands_at)
        record = self._record
        progress = record.progress
        is_quiet = progress is None or now_s - progress[1] >= QUIET_S
        thread = self._thread()
        frames = frames_of(thread) if is_quiet else []
        saving_s = record.saving.get(thread)
        # there was a step since then: an exception from a signal handler left the save
        if saving_s is not None and (progress is None or progress[1] <= saving_s):
            self._enter("checkpoint", saving_s)
        else:
            phase = self._decide(frames, collectives, now_s) if is_quiet else None
            self._enter(phase or self._base(), self._since(phase, now_s))
        self.stands_at = place(frames)
        return (self.phase, self.since_t, self.stands_at) != before

    def _decide(self, frames, collectives, now_s):
        """The phase according to a stack and the counters; None if they show none."""
        waits, does = recognize(frames)
        if does is None and self._is_evaluating_by_batches():
            does = "evaluation"
        if waits is None:
            self._waits_for = None
            return does
        waits_for = (waits, self._record.batches, collectives and dict(collectives))
        if self._waits_for != waits_for:
            self._waits_for, self._waits_since_s = waits_for, now_s
        is_brief = waits == "data" and does is None
        lasts = now_s - self._waits_since_s >= (WAIT_LOOK_S if is_brief else WAIT_S)
        if lasts:
            return waits
        # a brief wait does not end a phase of waiting either
        return does or (self.phase if self.phase == waits else None)

    def _is_evaluating_by_batches(self):
        """Whether batches are taken without gradients, or without any backward pass."""
        record = self._record
        taken = record.batches - record.batches_at_step
        if record.has_passed:
            return False
        if record.batches == record.batch_without_gradient:
            return taken > 0
        return record.optimizer_steps > 0 and taken >= EVALUATION_BATCHES

    def _base(self):
        return "start" if self._record.progress is None else "steps"

    def _since(self, phase, now_s):
        """When the phase started, if known."""
        record = self._record
        if phase is None and record.progress is not None:
            if self.phase in (None, "start"):
                return record.first_progress[1]
            if now_s - record.progress[1] < QUIET_S:
                return record.progress[1]
        return now_s

    def _enter(self, phase, since_s):
        if phase != self.phase:
            self.phase, self.since_t = phase, boottime_s(since_s)

    def _thread(self):
        """The thread that takes the steps; before the first step, the main thread."""
        return self._record.step_thread or main_thread()


def main_thread():
    """The number of the main thread; None if that is not known."""
    threading = sys.modules.get("threading")
    return None if threading is None else threading.main_thread().ident
