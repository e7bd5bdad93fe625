"""A socket to hear probes on, and a way to run a script as a rank."""

from tests.support.probe_ranks import json_lines, module_rank, rank, stub_torch

__all__ = ["json_lines", "module_rank", "rank", "stub_torch"]
