"""Linux: processes and their trees, signals, memory groups, the kernel log, and tmux."""
