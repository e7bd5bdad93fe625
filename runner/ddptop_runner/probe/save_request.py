"""Whether a person has asked for a checkpoint: `ddptop checkpoint` makes a file, named here.

Used by the probe's stand-in for ddptop and by ddptop itself.
"""

import os

_answered = None


def checkpoint_requested():
    """Whether a checkpoint was asked for since this process last asked; True once per request.

    The price while there is none is one look for a file. Seeing a request leaves its file to the
    other ranks, but changes its time, so that ddptop knows that a script has seen it.
    """
    global _answered
    path = os.environ.get("DDPTOP_CHECKPOINT_FILE")
    if not path:
        return False
    try:
        with open(path, "rb") as file:
            request = file.read(100)
    except OSError:
        return False
    if not request or request == _answered:
        return False
    _answered = request
    try:
        os.utime(path)
    except OSError:
        pass  # somebody has deleted it meanwhile
    return True
