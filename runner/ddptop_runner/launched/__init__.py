"""Jobs that are commands: who of their processes is a rank, and how each launcher is stopped."""
