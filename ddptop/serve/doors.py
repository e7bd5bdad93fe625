"""Who may come in: pure decisions on a request's address and headers.

The token in the path keeps other users of this machine out. A page of another origin that a browser
has open, or a name that was made to point here (DNS rebinding), does not know it either, and is
refused by `Host` and `Origin` besides.
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
    """Whether listening on it lets in this machine alone."""
    return host in ("localhost", "127.0.0.1", "::1")


def knows_token(path: str, token: str) -> bool:
    """Whether the path's first part is the token; compared in the same time for each wrong one."""
    first = path.removeprefix("/").partition("/")[0]
    return hmac.compare_digest(first.encode("utf-8", "replace"), token.encode())


def is_local_host(header: str | None) -> bool:
    """Whether a `Host` header names this machine; the port may be another one's, as by ssh -L."""
    if not header:
        return False
    name, colon, port = header.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = header, "0"
    return name.lower() in LOCAL_NAMES and port.isdigit()


def is_own_origin(origin: str | None, host: str | None) -> bool:
    """Whether a websocket is asked for by a page that came from here; browsers always tell."""
    return bool(origin) and bool(host) and origin == f"http://{host}"


def may_enter(path: str, token: str, host: str | None, origin: str | None, *, socket: bool) -> bool:
    """Whether a request is answered."""
    if not (knows_token(path, token) and is_local_host(host)):
        return False
    return is_own_origin(origin, host) if socket or origin else True
