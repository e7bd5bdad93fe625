"""Losses, steps, totals, and rates read from the text that a training prints."""
