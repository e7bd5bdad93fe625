"""Linux: processes and their trees, signals, memory groups, and tmux."""
