"""ddptop: launch, watch and keep alive distributed training from one terminal.

In a training script, optional: `ddptop.report(loss=..., step=..., total=..., **metrics)`, and
`if ddptop.checkpoint_requested(): save()`.
"""

from ddptop.reporting import checkpoint_requested, report
from ddptop_runner.version import __version__

__all__ = ["__version__", "checkpoint_requested", "report"]
