"""The user's settings: `$XDG_CONFIG_HOME/ddptop/config.toml`, which is optional.

```toml
[runs]
keep_days = 30       # ended runs older than this are deleted at the next launch
keep_bytes = "50G"   # so are the oldest ended runs beyond this total size
```

`[interface]`, `[keys]`, and `[themes.NAME]` belong to the interface; see
`ddptop.tui.prefs.settings`.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import config_file
from ddptop_runner.base.units import parse_size


class RunsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[runs]`: which ended runs are kept. By default, all are."""

    keep_days: float | None = None
    keep_bytes: int | str | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. Sections unknown to this version are ignored."""

    runs: RunsConfig = RunsConfig()


def read_config() -> Config:
    """Read the settings; defaults if there is no file.

    Raises:
        UsageError: the file cannot be read, or has an invalid value.
    """
    file = config_file()
    try:
        config = msgspec.toml.decode(bounded.read_bytes(Path(os.path.realpath(file))), type=Config)
        keep_bytes(config.runs)
        if config.runs.keep_days is not None and not config.runs.keep_days >= 0:
            raise ValueError(f"keep_days = {config.runs.keep_days:g} is not 0 or more")
    except FileNotFoundError:
        return Config()
    except (OSError, RecursionError, ValueError) as error:  # of msgspec and tomllib
        raise UsageError(f"{file} is not valid ({error})", "fix or remove it") from error
    return config


def keep_bytes(runs: RunsConfig) -> int | None:
    """`keep_bytes` in bytes: a number, or one with K, M, G, or T.

    Raises:
        ValueError: it is not a size.
    """
    given = runs.keep_bytes
    if given is None:
        return None
    size = parse_size(str(given))
    if size is None:
        raise ValueError(f'keep_bytes = {given!r} is not a valid size; use a size like "50G"')
    return size
