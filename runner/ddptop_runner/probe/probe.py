"""The probe of one process, loaded as the private package `_ddptop_probe`.

Loading it only sets up import hooks. The rest is loaded when torch is imported or when the script
calls `report`, so that a Python child that trains nothing pays almost nothing.
"""

from __future__ import annotations

import _frozen_importlib
import os
import sys

SAVERS = (
    "safetensors.torch",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.checkpoint.state_dict_loader",
    "lightning.fabric.utilities.cloud_io",
    "lightning_fabric.utilities.cloud_io",
)
"""Modules that save or load files: see `saves.SAVERS` and `saves.LOADERS`."""

TRAINERS = (
    "transformers.trainer_callback",
    "lightning.pytorch.loops.fit_loop",
    "pytorch_lightning.loops.fit_loop",
)
"""Modules of trainers that know how long a training will take: see `trainers.arm`."""

_session = None


def start():
    """Set up the import hooks. Called once, by sitecustomize."""
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
    )
    sys.meta_path.insert(
        0,
        ImportHook(
            {
                "torch": _torch_imported,
                "torch.distributed.fsdp.sharded_grad_scaler": lambda module: (
                    current_session().hooks.arm_scaler(module.ShardedGradScaler)
                ),
                "deepspeed.runtime.engine": lambda module: current_session().hooks.arm_deepspeed(
                    module.DeepSpeedEngine
                ),
                "apex.amp": lambda module: current_session().hooks.arm_apex(module),
                **dict.fromkeys(TRAINERS, lambda it: current_session().trainer_imported(it)),
                **dict.fromkeys(SAVERS, lambda it: current_session().hooks.arm_saver(it)),
            }
        ),
    )
    sys.meta_path.append(StandIn("ddptop", report, checkpoint_requested))
    if "torch" in sys.modules:  # a .pth file was faster
        _torch_imported(sys.modules["torch"])


def report(loss=None, step=None, total=None, **metrics):
    """Tell ddptop what only the script knows; what is not a number is ignored.

    Args:
        loss: The loss to show instead of the one seen in the backward pass.
        step: The step of the whole training, counted over restarts; also as `global_step`.
        total: The number of steps that the whole training will take; also as `total_steps`.
        **metrics: Any other figures to show.
    """
    try:
        current_session().report(loss, step, total, metrics)
    except Exception:  # reporting must never end a training
        pass


def current_session():
    """This process's session, created on first use."""
    global _session
    if _session is None:
        from . import session

        _session = session.Session()
    return _session


def _torch_imported(torch):
    current_session().torch_imported(torch)


def _before_fork():
    if _session is not None:
        _session.before_fork()


def _after_fork_in_parent():
    if _session is not None:
        _session.after_fork_in_parent()


def _after_fork():
    if _session is not None:
        _session.after_fork_in_child()


_IMPORTLIB_FILE = "<frozen importlib._bootstrap_external>"


class ImportHook:
    """Calls a function with each awaited module once that module was executed.

    `find_spec` alone changes nothing: libraries check whether torch exists long before they import
    it. The awaited module keeps its own loader.
    """

    def __init__(self, actions):
        self._actions = actions

    def find_spec(self, fullname, path=None, target=None):
        """The spec that the other finders return, armed; None for a module that is not awaited."""
        action = self._actions.get(fullname)
        if action is None:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                _arm(spec.loader, action)
                return spec
        return None


def _arm(loader, action):
    """Make `loader`, which serves one import, call `action` after executing the module."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module):
        try:
            del loader.exec_module
        except AttributeError:
            pass
        execute(module)
        try:
            action(module)
        except Exception:  # the script imports its module, even if the probe fails
            pass

    # the frames of an import are trimmed from tracebacks by their file: a torch that fails to
    # import then reads as it does without the probe
    exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTLIB_FILE)
    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader that accepts no attributes works without the probe
        pass


class StandIn:
    """Last on sys.meta_path: a module of functions, if no real module has that name."""

    def __init__(self, name, *functions):
        self._name = name
        self._functions = functions

    def find_spec(self, fullname, path=None, target=None):
        """The substitute's spec; called only after all other finders have found nothing."""
        if fullname != self._name:
            return None
        return _frozen_importlib.ModuleSpec(fullname, self, origin="ddptop probe")  # type: ignore[arg-type]

    def create_module(self, spec):
        """Leave it to the import system: an ordinary module object is enough."""

    def exec_module(self, module):
        """Fill the module."""
        module.__doc__ = "Stand-in for ddptop inside a job whose Python lacks the package."
        module.__all__ = [function.__name__ for function in self._functions]
        module.__dict__.update(zip(module.__all__, self._functions))


_last_request = None


def checkpoint_requested():
    """Whether a checkpoint was asked for since this process last asked; True once per request.

    The price while there is none is one look for a file. Seeing a request leaves its file to the
    other ranks, but changes its time, so that ddptop knows that a script has seen it.
    """
    global _last_request
    path = os.environ.get("DDPTOP_CHECKPOINT_FILE")
    if not path:
        return False
    try:
        with open(path, "rb") as file:
            request = file.read(100)
    except OSError:
        return False
    if not request or request == _last_request:
        return False
    _last_request = request
    try:
        os.utime(path)
    except OSError:
        pass  # it was deleted in the meantime
    return True
