"""The probe of one process, loaded as the private package `_ddptop_probe`.

Loading it only sets up import hooks. The rest is loaded when torch was imported or when the script
calls `report`, so that a Python child that trains nothing pays for next to nothing.
"""

from __future__ import annotations

import os
import sys

from . import finders

SAVERS = (
    "safetensors.torch",
    "torch.distributed.checkpoint.state_dict_saver",
    "lightning.fabric.utilities.cloud_io",
    "lightning_fabric.utilities.cloud_io",
    "ultralytics.engine.trainer",
)
"""Modules that save files: `saves.SAVERS` says how."""

SCALERS = (
    *("apex.amp", "apex.fp16_utils.loss_scaler", "apex.fp16_utils.fp16_optimizer"),
    "apex.contrib.optimizers.fp16_optimizer",
)
"""Modules of apex that scale losses; what is in them, `scalers` says."""

KERAS = (
    *("keras.src.callbacks.callback_list", "keras.src.callbacks", "keras.callbacks"),
    *("tf_keras.src.callbacks", "tensorflow.python.keras.callbacks"),
)
"""Modules that may hold Keras's list of callbacks."""

TRAINERS = (
    "transformers.trainer_callback",
    "lightning.pytorch.loops.fit_loop",
    "pytorch_lightning.loops.fit_loop",
)
"""Modules of trainers that know how long a training will take: `trainers.arm` says how."""

_session = None


def start():
    """Set up the import hooks. Called once, by sitecustomize."""
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
    )
    sys.meta_path.insert(
        0,
        finders.ImportHook(
            {
                "torch": _torch_imported,
                "torch.distributed.fsdp.sharded_grad_scaler": _sharded_scaler_imported,
                "deepspeed.runtime.engine": _deepspeed_imported,
                **dict.fromkeys(SCALERS, _apex_imported),
                **dict.fromkeys(KERAS, _keras_imported),
                **dict.fromkeys(TRAINERS, _trainer_imported),
                **dict.fromkeys(SAVERS, _saver_imported),
            }
        ),
    )
    sys.meta_path.append(finders.StandIn("ddptop", report, checkpoint_requested))
    if "torch" in sys.modules:  # a .pth file was quicker
        _torch_imported(sys.modules["torch"])


def report(loss=None, step=None, total=None, **metrics):
    """Tell ddptop what only the script knows; what is not a number is ignored.

    Args:
        loss: The loss to show instead of the one seen in the backward pass.
        step: The step of the whole training, counted over restarts.
        total: The number of steps that the whole training will take.
        **metrics: Any other figures to show.
    """
    try:
        current_session().report(loss, step, total, metrics)
    except Exception:  # reporting must never end a training
        pass


def checkpoint_requested():
    """Whether a person has asked for a checkpoint; see `save_request`."""
    from . import save_request

    return save_request.checkpoint_requested()


def current_session():
    """This process's session, made at the first use."""
    global _session
    if _session is None:
        from . import session

        _session = session.Session()
    return _session


def _torch_imported(torch):
    current_session().torch_imported(torch)


def _sharded_scaler_imported(module):
    current_session().hooks.arm_scaler(module.ShardedGradScaler)


def _deepspeed_imported(module):
    current_session().hooks.arm_deepspeed(module.DeepSpeedEngine)


def _apex_imported(module):
    current_session().hooks.arm_apex(module)


def _keras_imported(module):
    current_session().keras_imported(module)


def _trainer_imported(module):
    current_session().trainer_imported(module)


def _saver_imported(module):
    current_session().hooks.arm_saver(module)


def _before_fork():
    if _session is not None:
        _session.before_fork()


def _after_fork_in_parent():
    if _session is not None:
        _session.after_fork_in_parent()


def _after_fork():
    if _session is not None:
        _session.after_fork_in_child()
