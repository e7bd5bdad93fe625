"""This machine's IP addresses and their interfaces."""

from __future__ import annotations

import socket

MOST_ADDRESSES = 8
LOOPBACK = "127.0.0.1"
_BRIDGES = ("docker", "br-", "virbr", "veth", "cni", "lxc", "lxd")


def addresses(ssh_connection: str) -> list[str]:
    """The addresses at which other hosts may reach this one, likeliest first.

    Args:
        ssh_connection: the variable SSH_CONNECTION, whose third word is the address that ssh used.
    """
    words = ssh_connection.split()
    found = [words[2]] if len(words) == 4 else []
    named: list[str] = []
    try:
        named = [
            str(entry[4][0])
            for entry in socket.getaddrinfo(
                socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM
            )
        ]
    except OSError:
        pass
    own = [address for _, address in of_interfaces()]
    found += [address for address in named if address in own]
    found += own
    usable = [one for one in found if not one.startswith(("127.", "fe80:")) and one != "::1"]
    likely = list(dict.fromkeys(usable))[: MOST_ADDRESSES - 1]
    return [*likely, LOOPBACK]


def of_interfaces() -> list[tuple[str, str]]:
    """(interface, IPv4 address) of each interface with one, those of containers last."""
    import psutil  # a launch on one machine does without

    found = [
        (name, one.address)
        for name, all_ in psutil.net_if_addrs().items()
        for one in all_
        if one.family == socket.AF_INET
    ]
    return sorted(found, key=lambda one: one[0].startswith(_BRIDGES))


def interface_of(address: str) -> str | None:
    """The interface with this IPv4 address, if there is one."""
    return next((name for name, its in of_interfaces() if its == address), None)


def is_loopback(address: str) -> bool:
    """Whether a name or address always means this machine."""
    return address in ("localhost", "::1") or address.startswith("127.")
