"""What the tests' trainings record about themselves."""

import json
import os
import time


class Notes:
    """Lines of {step, loss, pid ...} in notes/<name>.jsonl of the working directory."""

    def __init__(self, name, **always):
        self._file = open(f"notes/{name}.jsonl", "w", buffering=1)  # noqa: SIM115, PTH123
        self._always = {"pid": os.getpid(), **always}
        self._step = 0

    def stepped(self, loss, **more):
        """One more step is done; the next one follows a moment later."""
        self._step += 1
        line = {"step": self._step, "loss": loss, **self._always, **more}
        self._file.write(json.dumps(line) + "\n")
        time.sleep(0.05)
