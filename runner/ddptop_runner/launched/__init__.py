"""Jobs that are commands: which of their processes are ranks, and how each launcher is stopped."""
