"""Other launchers: which one a command or script uses, and how to call it."""
