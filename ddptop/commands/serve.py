"""`ddptop serve`: the screens in a browser on this machine."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import sys

from ddptop.output import put
from ddptop.terminal import until_stopped
from ddptop_runner.base.errors import UsageError
from ddptop_runner.host import procs

DEFAULT_PORT = 8425
LOOPBACK = ("localhost", "127.0.0.1", "::1")
NEEDED = ("textual_serve", "aiohttp")


def run(host: str, port: int, actions: bool) -> int:
    """Serve until ctrl+c or SIGTERM.

    Args:
        host: a loopback address.
        port: the port; 0 picks a free one.
        actions: whether the browser can launch, stop, and restart jobs.

    Raises:
        UsageError: the extra is not installed, the address is not a loopback address, or the port
            is not available.
    """
    if host not in LOOPBACK:
        raise UsageError(
            f"--host {host} is not a loopback address; anyone who can connect can read all logs",
            f"remove --host, and run on the other machine: {_tunnel(port or DEFAULT_PORT)}",
        )
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise UsageError("serve requires textual-serve", "run pip install 'ddptop[serve]'")
    from ddptop.serve.server import new_token, serve

    token = new_token()

    def ready(taken: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        put(f"http://{shown}:{taken}/{token}/")
        put(f"to connect from another machine, run {_tunnel(taken)}, then open the same URL there")
        what = "actions are enabled" if actions else "read-only; use --actions to enable actions"
        put(f"{what}; ctrl+c stops the server, not the jobs")
        sys.stdout.flush()

    try:
        asyncio.run(until_stopped(serve(host, port, token, actions=actions, ready=ready)))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is in use" if error.errno == errno.EADDRINUSE else "is not allowed for this user"
        raise UsageError(
            f"port {port} {why}", "use --port N, or --port 0 for any free port"
        ) from None
    return 0


def _tunnel(port: int) -> str:
    return f"ssh -L {port}:127.0.0.1:{port} {procs.host_name()}"
