"""Keeps a run folder in order while the job lives: log sizes, disk space, damaged files."""
