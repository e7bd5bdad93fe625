"""ddptop: launch, watch and keep alive distributed training from one terminal.

In a training script, optional: `ddptop.report(loss=..., step=..., total=..., **metrics)`.
"""

from ddptop.reporting import report
from ddptop_runner.version import __version__

__all__ = ["__version__", "report"]
