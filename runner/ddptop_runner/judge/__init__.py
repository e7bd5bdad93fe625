"""Pure verdicts: hangs, causes, the restart policy, balance, and alerts."""
