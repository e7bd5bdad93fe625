"""All user-facing errors, each with the cause and the remedy.

```
DdptopError                exit 1
├── UsageError             exit 2   what was asked for cannot be done as asked
├── NoSuchJobError         exit 3   no run folder of that name
├── WaitTimeoutError       exit 124 the time given has passed
├── ControlError           exit 1   the supervisor did not answer or refused
└── DamagedFileError       exit 1   a file of the run folder cannot be read
    └── NewerFileError     exit 1   a later ddptop wrote it
```
"""

from __future__ import annotations


class DdptopError(Exception):
    """An error shown to the person as one line, `message` and then `hint`."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        """What is wrong, naming the thing."""
        self.hint = hint
        """What to do about it, or None if the message includes it."""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(DdptopError):
    """The request cannot be carried out; nothing was changed."""

    exit_code = 2


class NoSuchJobError(DdptopError):
    """No job of that name is known on this machine."""

    exit_code = 3


class WaitTimeoutError(DdptopError):
    """The job did not end within the time given."""

    exit_code = 124


class ControlError(DdptopError):
    """The job's supervisor did not answer, or refused."""


class DamagedFileError(DdptopError):
    """A file of a run folder cannot be read as what it should be."""

    job = ""
    """The name of the run folder, where `registry.read_all` found it."""


class NewerFileError(DamagedFileError):
    """A file of a run folder is in the format of a later ddptop."""
