"""Training that ddptop did not start: found, watched and described from outside.

Nothing here disturbs a process: no signal, no ptrace and no write, but where a person asked for it
and confirmed it.
"""
