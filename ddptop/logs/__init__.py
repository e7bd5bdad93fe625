"""Logs: windows of lines, tails, merging, levels, and search, and the thread that reads them."""
