"""All user-facing errors, each with its cause and remedy.

```
DdptopError                exit 1
├── UsageError             exit 2   the request cannot be carried out as given
├── NoSuchJobError         exit 3   no run folder has that name
├── WaitTimeoutError       exit 124 the timeout has passed
├── LaunchInterruptedError exit 130 Ctrl-C came after the job had been handed over
├── ControlError           exit 1   the supervisor did not respond or refused
└── DamagedFileError       exit 1   a file in the run folder cannot be read
    └── OtherSchemaError   exit 1   another version of ddptop wrote it
```
"""

from __future__ import annotations

from typing import Literal, TypeAlias

RefusalCode: TypeAlias = Literal["absent", "broken_off", "silent", "unreachable", "ended"]
"""Why a supervisor did not do what it was asked to. `absent`: none listens; `broken_off`: it closed
the connection, and may still act; `silent`: it did not reply in time; `unreachable`: it cannot be
connected to for another reason; `ended`: the job has ended, and its last snapshot is to come."""


class DdptopError(Exception):
    """An error shown to the user on one line: `message`, then `hint`."""

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
    """The request cannot be carried out. Nothing was changed."""

    exit_code = 2


class NoSuchJobError(DdptopError):
    """No job with this name is known on this machine."""

    exit_code = 3


class WaitTimeoutError(DdptopError):
    """The job did not end within the timeout."""

    exit_code = 124


class LaunchInterruptedError(DdptopError):
    """The user interrupted `launch`, but the job exists."""

    exit_code = 130


class ControlError(DdptopError):
    """The job's supervisor did not respond, or refused."""

    def __init__(
        self, message: str, hint: str | None = None, code: RefusalCode | None = None
    ) -> None:
        super().__init__(message, hint)
        self.code = code
        """None if it refused the request."""


class DamagedFileError(DdptopError):
    """A file in a run folder cannot be read or has another form."""

    job = ""
    """The name of the run folder, if `registry.read_all` found the file."""


class OtherSchemaError(DamagedFileError):
    """A file in a run folder has the format of a later version of ddptop."""
