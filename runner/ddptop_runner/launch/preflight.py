"""Answers the head's questions about this host before a job starts; changes nothing.

`answer` runs on the host, inside `ddptop-node`, which lives as long as the head has questions. Its
listening socket lives as long, so that the other hosts can test whether they reach it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base import bounded, interpreters
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import members_dir
from ddptop_runner.base.start import own_command
from ddptop_runner.host.addresses import MOST_ADDRESSES, addresses
from ddptop_runner.launch import device_check
from ddptop_runner.launch.gpus import choice
from ddptop_runner.launch.request import script_of
from ddptop_runner.launch.slurm import allocation
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import Base
from ddptop_runner.version import __version__

PORTS = 8
"""How many ports a host offers. Attempts take turns, so that a late process of the previous attempt
does not connect to the new store."""
PORT_RANGE = range(20_000, 32_000)
"""Below the ephemeral ports that the kernel assigns to outgoing connections."""
CONNECT_S = 3.0
MOST_FILES = 2_000
"""How many Python files a working folder may contain to be compared."""
MOST_FILE_BYTES = 16 << 20
FOLDER_S = 5.0
_NOT_CODE = frozenset({"__pycache__", "node_modules", "site-packages", "wandb", "lightning_logs"})


class JobWanted(Base, frozen=True, kw_only=True):
    """What a job requires of every host."""

    kind: str
    """`script`, `module`, or `none`, with which no files are compared."""
    target: str
    cwd: str
    python: str
    nproc: int | None = None
    force: bool = False


class FactsWanted(JobWanted, frozen=True, kw_only=True, tag="facts"):
    """Asks for `HostFacts`."""

    gpus: str | None = None
    in_slurm: bool = False
    """Whether this host is a node of a Slurm allocation; only the allocation's GPUs count."""
    env: dict[str, str] = {}
    """Variables set for the job."""


class Target(Base, frozen=True, kw_only=True):
    """Another host, to which this one tries to connect."""

    host: str
    addresses: list[str]
    port: int
    nonce: str
    """What its socket sends; another machine at that address would not send it."""


class ReachWanted(Base, frozen=True, kw_only=True, tag="reach"):
    """Asks for `Reached`."""

    targets: list[Target]


class Reached(Base, frozen=True, kw_only=True):
    """By host, those of its addresses, in order, that this host can connect to."""

    reached: dict[str, list[str]]


class DoctorWanted(Base, frozen=True, kw_only=True, tag="doctor"):
    """Asks for a `doctor.Report`."""

    python: str


class CheckWanted(Base, frozen=True, kw_only=True, tag="check"):
    """Asks for a `device_check.HostResult`."""

    rendezvous: device_check.Rendezvous


Question = FactsWanted | ReachWanted | DoctorWanted | CheckWanted


class HostFacts(Base, frozen=True, kw_only=True):
    """The facts about a host that the head compares."""

    ddptop: str
    command: list[str]
    """The argv of `ddptop-node` there."""
    members: str = ""
    """Where the host stores its parts of jobs."""
    now_s: float
    """Its clock when it answers, in seconds since the epoch."""
    python: str
    python_version: str | None = None
    torch: str | None = None
    python_problem: str | None = None
    """Why the job cannot use `python`; None if it can."""
    python_notes: list[str] = []
    has_cwd: bool = True
    script_digest: str | None = None
    """None if the script is missing, or a module outside the working folder."""
    files: dict[str, str] | None = None
    """Digests of all Python files in the working folder; None if there are too many."""
    devices: list[Device] | None = None
    """The devices that the job gets; None if the host has none."""
    ranks: int | None = None
    """Number of ranks unless the request says otherwise; None if there is no telling."""
    gpus_refused: choice.Refused | None = None
    """Why the job cannot get the devices; None if it can."""
    gpus_problem: str | None = None
    """The same, as a sentence."""
    gpus_note: str | None = None
    addresses: list[str] = []
    """Most likely to work first."""
    ports: list[int] = []
    """Free ports; `ddptop-node` listens on the last one while it runs."""
    nonce: str = ""


def answer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a `Question` from the head; both are plain data.

    Raises:
        DdptopError: the question cannot be answered.
    """
    try:
        question: Question = msgspec.convert(dict(arguments), Question)
    except msgspec.ValidationError as error:
        raise UsageError(f"invalid question ({error})", "use the same ddptop everywhere") from None
    match question:
        case FactsWanted():
            return _plain(facts(question))
        case ReachWanted(targets=targets):
            return _plain(Reached(reached=reach(targets)))
        case CheckWanted(rendezvous=rendezvous):
            return _plain(device_check.run(rendezvous))
        case DoctorWanted(python=python):
            from ddptop_runner.launch.doctor import Place, Report, examine

            place = Place(env=dict(os.environ), cwd=Path.home(), python=python)
            return _plain(Report(checks=examine(place)))


def _plain(struct: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(struct)
    return found


def facts(question: FactsWanted) -> HostFacts:
    """Collect everything about this host that the head compares."""
    env = {**os.environ, **question.env}
    cwd = Path(question.cwd)
    version = torch = python_problem = None
    python_notes: list[str] = []
    try:
        found = interpreters.inspect(question.python)
        version, torch = ".".join(map(str, found.version)), found.torch_version
        python_notes = interpreters.require_torch(found)
    except DdptopError as error:
        python_problem = error.message
    devices = ranks = gpus_problem = None
    gpus_refused: choice.Refused | None = None
    notes: tuple[str, ...] = ()
    found_here = allocation(os.environ) if question.in_slurm else None
    has_none = found_here is not None and found_here.gpus_on_node is None
    gpus = question.gpus
    try:
        if has_none and gpus not in (None, "none"):
            raise choice.DevicesError("the allocation has no GPUs", "remove --gpus", "allocation")
        gpus = "none" if has_none else gpus
        chosen = choice.choose(gpus, env, question.nproc, force=question.force)
        devices, ranks, notes = chosen.devices, chosen.ranks, chosen.notes
    except DdptopError as error:
        gpus_problem = error.message
        gpus_refused = error.why if isinstance(error, choice.DevicesError) else "other"
    trains = question.kind != "none"
    script = script_of(question.kind, question.target, cwd) if trains else None
    ports, nonce = listen()
    return HostFacts(
        ddptop=__version__,
        command=own_command("node"),
        members=str(members_dir()),
        python=question.python,
        python_version=version,
        torch=torch,
        python_problem=python_problem,
        python_notes=python_notes,
        has_cwd=cwd.is_dir(),
        script_digest=None if script is None else digest_of(script),
        files=digests(cwd) if trains else None,
        devices=devices,
        ranks=ranks,
        gpus_refused=gpus_refused,
        gpus_problem=gpus_problem,
        gpus_note="; ".join(notes) or None,
        addresses=addresses(os.environ.get("SSH_CONNECTION", "")),
        ports=ports,
        nonce=nonce,
        now_s=time.time(),
    )


# --- files ----------------------------------------------------------------------------------------


def digest_of(path: Path) -> str | None:
    """A digest of a file's content; None if it cannot be read or is not a regular file."""
    try:
        with os.fdopen(bounded.open_regular(path.resolve()), "rb") as file:
            return hashlib.sha256(file.read(MOST_FILE_BYTES)).hexdigest()[:16]
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return None


def digests(folder: Path) -> dict[str, str] | None:
    """The digest of each Python file in a folder tree; None if there are too many.

    Hidden folders, virtual environments, and generated folders are skipped.
    """
    deadline_s = time.monotonic() + FOLDER_S
    found: dict[str, str] = {}
    for path in _python_files(folder):
        if len(found) >= MOST_FILES or time.monotonic() > deadline_s:
            return None
        if (digest := digest_of(path)) is not None:
            found[str(path.relative_to(folder))] = digest
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    for directory, folders, names in os.walk(folder):
        here = Path(directory)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NOT_CODE
            and not os.access(here / name / "pyvenv.cfg", os.F_OK)  # never raises, unlike exists()
        )
        yield from (here / name for name in sorted(names) if name.endswith(".py"))


# --- ports, and connections between hosts ---------------------------------------------------------


_listening: list[tuple[list[int], str]] = []


def listen() -> tuple[list[int], str]:
    """(free ports, nonce); from now on, this process sends the nonce on the last port."""
    if _listening:
        return _listening[0]
    ports: list[int] = []
    held: list[socket.socket] = []
    chooser, both = random.SystemRandom(), socket.has_dualstack_ipv6()
    for port in chooser.sample(PORT_RANGE, 20 * PORTS):
        with contextlib.suppress(OSError):  # in use
            held.append(
                socket.create_server(
                    ("", port),
                    family=socket.AF_INET6 if both else socket.AF_INET,
                    dualstack_ipv6=both,
                )
            )
            ports.append(port)
        if len(ports) == PORTS:
            break
    for one in held[:-1]:
        one.close()
    nonce = secrets.token_hex(8)
    if held:
        serve = threading.Thread(target=_answer_all, args=(held[-1], nonce), daemon=True)
        serve.start()
    _listening.append((ports, nonce))
    return ports, nonce


def _answer_all(server: socket.socket, nonce: str) -> None:
    while True:
        try:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(CONNECT_S)
                connection.sendall(nonce.encode())
                connection.recv(1)  # let the other side close first: TIME_WAIT is then there
        except OSError:
            time.sleep(0.01)


def reach(targets: Sequence[Target]) -> dict[str, list[str]]:
    """By target, those of its addresses, in order, that this host can connect to."""
    pairs = [
        (target, address) for target in targets for address in target.addresses[:MOST_ADDRESSES]
    ]
    with ThreadPoolExecutor(max_workers=max(1, len(pairs))) as pool:
        connected = list(pool.map(lambda pair: _connects(*pair), pairs))
    reached = [pair for pair, is_connected in zip(pairs, connected, strict=True) if is_connected]
    return {
        target.host: [address for one, address in reached if one is target] for target in targets
    }


def _connects(target: Target, address: str) -> bool:
    try:
        with socket.create_connection((address, target.port), timeout=CONNECT_S) as connection:
            found = b""
            while len(found) < len(target.nonce) and (more := connection.recv(64)):
                found += more
    except (OSError, ValueError, OverflowError):  # ValueError: no address, as a host may report
        return False
    return found == target.nonce.encode()
