"""From a request to a plan: checks, GPUs, other launchers, and `ddptop doctor`."""
