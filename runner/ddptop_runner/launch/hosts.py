"""Parses the hosts of a job: `--hosts`, `--hostfile`, and `--nodes`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.gpus.choice import parse_gpus

FORMS = "use HOST, USER@HOST, or HOST:GPUS, as in --hosts a,b:0-3,me@c:0,2"
_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9_.+\\-]*@)?"
_HOST = re.compile(_USER + r"[A-Za-z0-9_][A-Za-z0-9_.%+-]*")
"""A host or alias that is safe on an ssh command line: above all, no leading dash."""
_IPV6 = re.compile(rf"({_USER})\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?)\](?::(.*))?")
_CONTINUES = re.compile(r"\d+(?:-\d+)?|(?:GPU|MIG)-[0-9A-Za-z/-]+")
"""What follows a comma if it is another of the host's devices, not another host."""


@dataclass(frozen=True)
class HostRequest:
    """One requested host."""

    host: str
    """As passed to ssh: an alias, name, or address, with or without `user@`."""
    gpus: str | None = None
    """Its devices, in the form of --gpus; None for those of --gpus, or all."""
    slots: int | None = None
    """Number of ranks, from a hostfile; None for --nproc, or one per GPU."""


def parse_hosts(text: str, option: str = "--hosts") -> tuple[HostRequest, ...]:
    """Parse `a,b:0-3,me@c:0,2`, where a number after a comma continues the list of GPUs.

    Raises:
        UsageError: names the invalid part.
    """
    found: list[HostRequest] = []
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UsageError(f"{option} is empty", FORMS)
    for part in parts:
        if found and found[-1].gpus is not None and _CONTINUES.fullmatch(part):
            found[-1] = HostRequest(found[-1].host, f"{found[-1].gpus},{part}")
        else:
            found.append(_host(part, option, text))
    for one in found:
        if one.gpus is not None:
            parse_gpus(one.gpus, f"{option}: the GPUs of {one.host}")
    return require_distinct(found, option)


def parse_hostfile(text: str, name: str) -> tuple[HostRequest, ...]:
    """Parse one host per line: `HOST[:GPUS] [slots=N]`; `#` starts a comment.

    Args:
        text: the file's content.
        name: the file's name, for messages.

    Raises:
        UsageError: names the invalid line.
    """
    found: list[HostRequest] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}, line {number}"
        host, *more = parse_hosts(words[0], where)
        if more:
            raise UsageError(f"{where}: {words[0]!r} is more than one host", "write one per line")
        slots = None
        for word in words[1:]:
            if (given := re.fullmatch(r"slots=([0-9]{1,5})", word)) is None or int(given[1]) < 1:
                raise UsageError(f"{where}: {word!r} is not slots=N", "use HOST[:GPUS] [slots=N]")
            slots = int(given[1])
        found.append(HostRequest(host.host, host.gpus, slots))
    if not found:
        raise UsageError(f"{name} names no hosts", "write one host per line: HOST[:GPUS] [slots=N]")
    return require_distinct(found, name)


def _host(part: str, option: str, text: str) -> HostRequest:
    if not part:
        raise UsageError(f"{option} {text!r} has an empty entry", FORMS)
    if "[" in part or "]" in part:
        if (bracketed := _IPV6.fullmatch(part)) is None:
            raise UsageError(f"{option}: {part!r} is not a valid host", "use [ADDRESS]:GPUS")
        user, host, gpus = bracketed.groups()
        host, gpus = f"{user}{host}", gpus
    else:
        host, colon, rest = part.partition(":")
        gpus = rest if colon else None
        if gpus is not None and gpus.count(":") > gpus.startswith("auto:"):
            raise UsageError(
                f"{option}: {part!r} has several colons", "put an IPv6 address in brackets: [::1]"
            )
        if not _HOST.fullmatch(host):
            raise UsageError(f"{option}: {part!r} is not a valid host", FORMS)
    return HostRequest(host, gpus)


def require_distinct(hosts: Sequence[HostRequest], option: str) -> tuple[HostRequest, ...]:
    """Return `hosts`, provided that each is listed once.

    Raises:
        UsageError: a host is listed twice.
    """
    seen: set[str] = set()
    for one in hosts:
        if one.host in seen:
            raise UsageError(
                f"{option} lists {one.host} twice", "list each host once, as in HOST:0-3"
            )
        seen.add(one.host)
    return tuple(hosts)


def parse_nodes(text: str) -> tuple[int, int]:
    """Parse `--nodes MIN:MAX` or `--nodes N` into (fewest, most).

    Raises:
        UsageError: the text is neither, or MIN is greater than MAX.
    """
    found = re.fullmatch(r"([0-9]{1,5})(?::([0-9]{1,5}))?", text.strip())
    if found is None or int(found[1]) < 1:
        raise UsageError(f"--nodes {text} is not a number of machines", "use N, or MIN:MAX")
    fewest, most = int(found[1]), int(found[2] or found[1])
    if most < fewest:
        raise UsageError(f"--nodes {text}: MIN is greater than MAX", f"use {most}:{fewest}")
    return fewest, most


def fewest_nodes(nodes: tuple[int, int] | None, hosts: int) -> int:
    """The fewest hosts that the job may train on: all of them, unless --nodes says otherwise.

    Raises:
        UsageError: --nodes does not match the number of hosts listed.
    """
    if nodes is None:
        return hosts
    fewest, most = nodes
    if most != hosts:
        asked = f"--nodes {fewest}" if fewest == most else f"--nodes {fewest}:{most}"
        raise UsageError(
            f"{asked}, but --hosts lists {hosts}",
            f"list {most} hosts, or use --nodes {min(fewest, hosts)}:{hosts}",
        )
    return fewest
