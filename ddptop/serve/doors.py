"""Access control: pure decisions based on a request's path and headers.

The token in the path keeps out other users of this machine. Pages of other origins and names that
an attacker points at this machine (DNS rebinding) do not have it either; `Host` and `Origin` are
checked as well.
"""

from __future__ import annotations

import hmac
import secrets

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
TOKEN_BYTES = 24

REFUSED = "403: missing token; use the full URL that `ddptop serve` printed\n"


def new_token() -> str:
    """A random token that is safe in a URL."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def is_loopback(host: str) -> bool:
    """Whether a server on this address accepts connections only from this machine."""
    return host in ("localhost", "127.0.0.1", "::1")


def knows_token(path: str, token: str) -> bool:
    """Whether the path's first part is the token; compared in constant time."""
    first = path.removeprefix("/").partition("/")[0]
    return hmac.compare_digest(first.encode("utf-8", "replace"), token.encode())


def is_local_host(header: str | None) -> bool:
    """Whether a `Host` header names this machine; the port may differ, as with ssh -L."""
    if not header:
        return False
    name, colon, port = header.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = header, "0"
    return name.lower() in LOCAL_NAMES and port.isdigit()


def is_own_origin(origin: str | None, host: str | None) -> bool:
    """Whether the page that requests a websocket came from here; browsers always send `Origin`."""
    return bool(origin) and bool(host) and origin == f"http://{host}"


def may_enter(path: str, token: str, host: str | None, origin: str | None, *, socket: bool) -> bool:
    """Whether to answer a request."""
    if not (knows_token(path, token) and is_local_host(host)):
        return False
    return is_own_origin(origin, host) if socket or origin else True
