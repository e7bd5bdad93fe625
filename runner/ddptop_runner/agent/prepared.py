"""Logs of the next attempt that hold disk blocks already, for the case of a full disk."""

import os

NEXT = ".next"
"""The folder of the attempt to come, which the supervisor prepares; see `upkeep.keeper`."""


def take_prepared_logs(logs_dir, attempt, names):
    """Make the prepared folder the attempt's, without logs of ranks that it does not have.

    Args:
        logs_dir: holds the folders of all attempts.
        attempt: its number.
        names: of the logs that it has.
    """
    folder = os.path.join(logs_dir, "attempt-%s" % attempt)
    try:
        if not os.path.exists(folder):
            os.rename(os.path.join(logs_dir, NEXT), folder)
            for name in set(os.listdir(folder)) - set(names):
                os.unlink(os.path.join(folder, name))
    except OSError:
        pass  # there is none
