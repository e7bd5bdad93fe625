"""What every type of `model` is made from."""

from __future__ import annotations

import msgspec


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen and complete in itself. msgspec inherits neither option: each type repeats them."""
