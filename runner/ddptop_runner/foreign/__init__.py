"""Discovers, watches, and describes training that ddptop did not start.

Nothing here disturbs a process: no signal, no ptrace, and no write, unless the user requested and
confirmed it.
"""
