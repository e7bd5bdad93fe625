"""Raises before its first step."""

raise ValueError("no such dataset")
