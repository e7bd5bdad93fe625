"""Steps that torch.compile took out of the sight of the hooks.

A compiled optimizer step runs no Python hook, but it changes parameters, and a tensor counts its
changes. So at a backward pass that follows another one without a step between, a changed parameter
tells that there was a step. The last step of a training is found only if the optimizer still lives
when the process ends.
"""

from __future__ import annotations

import weakref

SAMPLE_SIZE = 8
"""Parameters looked at per optimizer: the first may be unused and never change."""

IN_A_ROW = 3
"""So many steps are found before any of them counts."""


class StepWatch:
    """Finds steps by what they changed, for the optimizers of one process."""

    def __init__(self):
        self._seen = []
        """[(reference to the optimizer, sum of versions when last looked at)]"""

    def meet(self, optimizer):
        """An optimizer is being made."""
        self._seen = [entry for entry in self._seen if entry[0]() is not None]
        # LBFGS changes its parameters several times in a step, and is never compiled
        if not any(kind.__name__ == "LBFGS" for kind in type(optimizer).__mro__):
            self._seen.append((weakref.ref(optimizer), None))

    def changed(self):
        """The optimizers whose parameters changed since the last look, which this is."""
        changed = []
        for position, (ref, before) in enumerate(self._seen):
            optimizer = ref()
            if optimizer is None:
                continue
            now = _versions(optimizer)
            if now != before:
                self._seen[position] = (ref, now)
                if before is not None:
                    changed.append(optimizer)
        return changed


def _versions(optimizer):
    """How often a few parameters of an optimizer were changed in place."""
    total, left = 0, SAMPLE_SIZE
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            try:
                total += parameter._version
            except RuntimeError:  # an inference tensor counts nothing
                continue
            left -= 1
            if not left:
                return total
    return total
