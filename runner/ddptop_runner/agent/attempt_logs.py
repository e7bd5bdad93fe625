"""The logs of an attempt. The supervisor prepares them with disk blocks, for a full disk."""

import os

NEXT = ".next"
"""The folder of the attempt to come, which `node.keeper` prepares."""


def make_logs(logs_dir, attempt, names):
    """Make the attempt's folder, with a log for each name, readable by this user alone.

    The ranks run with the umask of the person's shell, which would decide otherwise.

    Args:
        logs_dir: holds the folders of all attempts.
        attempt: its number.
        names: of the logs that it has.

    Returns:
        The folder.
    """
    folder = os.path.join(logs_dir, "attempt-%s" % attempt)
    try:
        if not os.path.exists(folder):
            os.rename(os.path.join(logs_dir, NEXT), folder)
            for name in set(os.listdir(folder)) - set(names):
                os.unlink(os.path.join(folder, name))
    except OSError:
        pass  # none is prepared
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    for name in names:
        try:
            log = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o600)
            os.fchmod(log, 0o600)
            os.close(log)
        except OSError:
            pass  # whoever writes to it says why not
    return folder
