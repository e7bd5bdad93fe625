"""Losses that something scales before the backward pass, so that fp16 gradients do not vanish.

torch's scalers hand a scaled tensor back: it is labelled with the loss that it was made from. Those
of DeepSpeed and apex scale out of sight: the loss that the script hands over is kept for the
backward pass that follows.
"""

from __future__ import annotations

UNSCALED = "_ddptop_unscaled"
"""Attribute of a scaled loss that holds the loss before scaling, detached."""

APEX_SCALERS = {
    "apex.fp16_utils.loss_scaler": ("LossScaler", "DynamicLossScaler"),
    "apex.fp16_utils.fp16_optimizer": ("FP16_Optimizer",),
    "apex.contrib.optimizers.fp16_optimizer": ("FP16_Optimizer",),
}
"""{module: classes} whose `backward(loss)` scales a loss."""


class Scalers:
    """What is known of the scaled losses of one process.

    Args:
        torch: The module.
        record: The process's recorder.
        guard: Called with a function, gives one that lets no exception of the probe's out.
    """

    def __init__(self, torch, record, guard):
        self._torch = torch
        self._record = record
        self._guard = guard
        self.is_any = False
        """Whether any loss was ever scaled: those passed to backward are then not the script's."""
        self.labels = False
        """Whether any scaled loss was labelled."""
        self.handed_over = []
        """[(loss before scaling, divisor)] of the backward pass that comes."""

    def scale(self, original):
        """Around `scale(scaler, outputs)` of torch's scalers."""
        keep = self._guard(self._label)

        def scale(scaler, outputs):
            scaled = original(scaler, outputs)
            keep(outputs, scaled)
            return scaled

        return scale

    def update(self, original):
        """Around `update` of torch's scalers: losses that are left belong to a skipped step."""
        skipped = self._guard(self._record.step_skipped)

        def update(*args, **kwargs):
            skipped()
            return original(*args, **kwargs)

        return update

    def deepspeed_backward(self, original):
        """Around `DeepSpeedEngine.backward`."""
        keep, forget = self._guard(self._keep_deepspeeds), self.handed_over.clear

        def backward(engine, loss, *args, **kwargs):
            keep(engine, loss, kwargs)
            try:
                return original(engine, loss, *args, **kwargs)
            finally:
                forget()

        return backward

    def deepspeed_step(self, original):
        """Around `DeepSpeedEngine.step`: steps that it skips, and those that no optimizer tells."""
        record = self._record
        note = self._guard(self._note_deepspeeds_step)

        def step(engine, *args, **kwargs):
            before = (engine.__dict__.get("global_steps"), engine.__dict__.get("skipped_steps"))
            result = original(engine, *args, **kwargs)
            if record.backwards != record.backwards_at_step:
                note(engine, *before)
            return result

        return step

    def apex_scale_loss(self, original):
        """Around `apex.amp.scale_loss`."""
        keep = self._guard(self._keep)

        def scale_loss(loss, *args, **kwargs):
            keep(loss)
            return original(loss, *args, **kwargs)

        return scale_loss

    def apex_backward(self, original):
        """Around `backward(loss)` of apex's own scalers and optimizers."""
        keep, forget = self._guard(self._keep), self.handed_over.clear

        def backward(scaler, loss, *args, **kwargs):
            keep(loss)
            try:
                return original(scaler, loss, *args, **kwargs)
            finally:
                forget()

        return backward

    def _label(self, outputs, scaled):
        if scaled is outputs:  # a scaler that is switched off
            return
        if isinstance(outputs, self._torch.Tensor):
            outputs, scaled = (outputs,), (scaled,)
        if isinstance(outputs, (tuple, list)):
            self.labels = self.is_any = True
            for before, after in zip(outputs, scaled):
                setattr(after, UNSCALED, before.detach())

    def _keep(self, loss):
        if isinstance(loss, self._torch.Tensor):
            self.handed_over[:] = [(loss.detach(), 1)]

    def _keep_deepspeeds(self, engine, loss, kwargs):
        # before its division as well, which rounds in half precision; forgotten before it returns
        if isinstance(loss, self._torch.Tensor):
            is_divided = kwargs.get("scale_wrt_gas", True)
            divisor = engine.gradient_accumulation_steps() if is_divided else 1
            self.handed_over[:] = [(loss, divisor)]

    def _note_deepspeeds_step(self, engine, steps_before, skipped_before):
        if engine.skipped_steps != skipped_before:
            self._record.step_skipped()
        elif engine.global_steps != steps_before:
            self._record.stepped(engine)
