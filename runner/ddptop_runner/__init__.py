"""The headless engine of ddptop: spec, run folder, guardian, supervisor, sampler, policy, history.

Nothing here imports the interface, Textual, Rich or torch. Only `agent/` (under the job's own
interpreter) touches torch.
"""

from ddptop_runner.version import __version__

__all__ = ["__version__"]
