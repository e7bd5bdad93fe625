"""Ranks that wait for each other at every step, as in a collective, but without torch.

`Meeting().meet()` returns once every rank of the attempt has called it. If a rank's connection
breaks because another rank has exited, it raises the exception that gloo raises.
"""

import os
import socket
import time

BROKEN = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:9"


class Meeting:
    """The ranks of one attempt, connected by a socket; rank 0 first waits for all others."""

    def __init__(self) -> None:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        address = f"\0{os.environ['TORCHELASTIC_RUN_ID']}/{attempt}"
        others = int(os.environ["WORLD_SIZE"]) - 1
        self._leads = os.environ["RANK"] == "0"
        if self._leads:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen(others)
                self._links = [listener.accept()[0] for _ in range(others)]
        else:
            self._links = [self._connected(address)]

    @staticmethod
    def _connected(address: str) -> socket.socket:
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                link.connect(address)
                return link
            except ConnectionRefusedError:  # rank 0 is not listening yet
                link.close()
                time.sleep(0.02)

    def meet(self) -> None:
        """Wait for all other ranks."""
        if self._leads:
            for link in self._links:
                self._hear(link)
        for link in self._links:
            self._say(link)
        if not self._leads:
            self._hear(self._links[0])

    @staticmethod
    def _hear(link: socket.socket) -> None:
        try:
            heard = link.recv(1)
        except ConnectionError:
            heard = b""
        if not heard:
            raise RuntimeError(BROKEN)

    @staticmethod
    def _say(link: socket.socket) -> None:
        try:
            link.send(b"!")
        except ConnectionError:
            raise RuntimeError(BROKEN) from None
