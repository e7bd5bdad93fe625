"""The sentence on what came back when an attempt resumed, for its event and for `ddptop status`."""

from __future__ import annotations

from ddptop_runner.model.snapshot import Resume


def resumed(found: Resume) -> str:
    """What came back when an attempt resumed."""
    parts: list[str] = []
    if found.batch == found.checkpoint_batch is not None:
        parts.append(f"data continues at batch {found.batch:,}")
    elif found.batch is not None:
        at = f", the checkpoint is at batch {found.checkpoint_batch:,}"
        parts.append(f"data starts at batch {found.batch:,}{at}")
    if found.optimizer_kept is not None:
        parts.append(
            f"the optimizer's state {'came' if found.optimizer_kept else 'did not come'} back"
        )
    if found.learning_rate is not None:
        was = found.learning_rate_before
        before = ", as before" if was is None else f", it was {was:g} at this step"
        parts.append(f"the learning rate is {found.learning_rate:g}{before}")
    return f"resumed at step {found.step:,}: {'; '.join(parts)}"
