"""Judges the facts of all hosts: the table, the refusals with their remedies, and the nodes.

Pure; `launch.survey` collects the facts.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ddptop_runner.base.interpreters import TORCH_REMEDY
from ddptop_runner.base.units import plural
from ddptop_runner.devices.words import names_of
from ddptop_runner.launch.gpus.choice import ON_CPU, Refused
from ddptop_runner.launch.preflight import HostFacts, JobWanted
from ddptop_runner.launch.request import HostRequest
from ddptop_runner.launch.ssh import Unreachable
from ddptop_runner.model.spec import NodeSpec

CLOCK_S = 1.0
"""Larger offsets get a note: merged logs are corrected for them, but file times are not."""


class Surveyed(msgspec.Struct, frozen=True):
    """What the head knows about one host."""

    request: HostRequest
    facts: HostFacts | None = None
    unreachable: Unreachable | None = None
    """Why there are no facts, if there are none."""
    clock_offset_s: float | None = None
    """How far its clock is ahead of the head's."""
    reached: dict[str, list[str]] | None = None
    """By other host, the addresses at which this host reaches it; None if not tested."""


class Wanted(JobWanted, frozen=True, kw_only=True):
    """What the job requires of every host, and what is known here."""

    trains: bool = True
    """Whether a job will start; if not, files and ranks are not checked."""
    script_digest: str | None = None
    """Digest of the script here; None if it is not here, and the first host's is the reference."""
    files: dict[str, str] | None = None
    """Digests of the Python files in the working folder here; None if there are too many."""


class Remark(NamedTuple):
    """Why the job cannot start, and what to do about it; or what to know before it starts."""

    hosts: tuple[str, ...]
    """The hosts with the problem; () if it concerns the whole job."""
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        who = f"{', '.join(self.hosts)}: " if self.hosts else ""
        return f"{who}{self.problem}{self.remedy and f'; {self.remedy}'}"


class Judged(msgspec.Struct, frozen=True):
    """The result of comparing all hosts."""

    rows: list[list[str]]
    """A table with a heading row."""
    refusals: list[Remark]
    notes: list[Remark]
    """Without a remedy."""
    nodes: list[NodeSpec]
    """Empty if the job is refused."""


_RANKS, _GPUS = "RANKS", "GPUS"
HEADING = ["HOST", "STATE", "DDPTOP", "TORCH", "PYTHON", _RANKS, "CLOCK", "ADDRESS"]
_UNKNOWN = "-"


def judge(hosts: Sequence[Surveyed], wanted: Wanted) -> Judged:
    """Compare the hosts with each other and with what the job requires."""
    refusals = [*_unreachable(hosts)]
    there = [(one, one.facts) for one in hosts if one.facts is not None]
    refusals += _programs(there)
    if wanted.trains:
        refusals += _files(there, wanted)
        refusals += _devices(there, wanted)
    addresses, unreached = _addresses(hosts)
    refusals += unreached
    merged = _merged(refusals)
    refused = {host for refusal in merged for host in refusal.hosts}
    heading = HEADING if wanted.trains else [_GPUS if one == _RANKS else one for one in HEADING]
    rows = [heading, *(_row(one, addresses, refused, wanted) for one in hosts)]
    nodes = []
    if not merged and wanted.trains:
        nodes = [
            NodeSpec(
                host=one.request.host,
                address=addresses[one.request.host],
                nproc=ranks_of(one.request, facts, wanted) or 0,
                devices=facts.devices,
                python=facts.python,
                command=facts.command,
                members=facts.members or None,
                ports=facts.ports[:-1],
            )
            for one, facts in there
        ]
    return Judged(rows, merged, _notes(there, wanted), nodes)


def ranks_of(request: HostRequest, facts: HostFacts, wanted: Wanted) -> int | None:
    """How many ranks a host gets; None if unknown."""
    return request.slots or wanted.nproc or facts.ranks


def _merged(refusals: Sequence[Remark]) -> list[Remark]:
    """Merge the refusals of hosts with the same problem."""
    found: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        found.setdefault((refusal.problem, refusal.remedy), []).extend(refusal.hosts)
    return [
        Remark(tuple(hosts), problem, remedy.replace("{hosts}", shlex.join(hosts)))
        for (problem, remedy), hosts in found.items()
    ]


def _unreachable(hosts: Sequence[Surveyed]) -> list[Remark]:
    found = []
    for one in hosts:
        if (why := one.unreachable) is not None:
            is_set_up = why.kind not in ("ddptop", "version")
            remedy = why.remedy if is_set_up else "run ddptop setup-host {hosts}"
            found.append(Remark((one.request.host,), why.problem, remedy))
    return found


_There = Sequence[tuple[Surveyed, HostFacts]]


def _programs(there: _There) -> list[Remark]:
    found = []
    torch = Counter(facts.torch for _, facts in there if facts.torch is not None)
    usual = torch.most_common(1)[0][0] if torch else None
    most = [one.request.host for one, facts in there if facts.torch == usual]
    for one, facts in there:
        host = (one.request.host,)
        if facts.python_problem is not None:
            found.append(
                Remark(
                    host,
                    facts.python_problem,
                    f"create the same environment there, or pass --python PATH (now {facts.python})"
                    if facts.torch is None
                    else f"{TORCH_REMEDY} there",
                )
            )
        elif facts.torch != usual and usual is not None:
            plain = usual.partition("+")[0]
            install = f"{facts.python} -m pip install torch=={plain}"
            found.append(
                Remark(
                    host,
                    f"torch {facts.torch} is installed there, but {usual} on {_some(most)}",
                    f"run `ssh {shlex.quote(host[0])} {install}`",
                )
            )
    return found


def _some(names: Sequence[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _copy(wanted: Wanted, host: str) -> str:
    source = shlex.quote(wanted.cwd.rstrip("/") + "/")
    return f"rsync -a {source} {shlex.quote(host)}:{source}"


def _files(there: _There, wanted: Wanted) -> list[Remark]:
    """Compare script and working folder with those here or, if not here, with the first host's."""
    found = []
    script, files, where = wanted.script_digest, wanted.files, "here"
    if script is None and there:
        first, facts = there[0]
        script, files, where = facts.script_digest, facts.files, f"on {first.request.host}"
    for one, facts in there:
        host = one.request.host
        copy = f"copy it: {_copy(wanted, host)}"
        if not facts.has_cwd:
            problem = f"the working directory {wanted.cwd} does not exist there"
            found.append(Remark((host,), problem, f"{copy}, or pass --cwd DIR"))
        elif facts.script_digest is None and wanted.kind == "script":
            found.append(Remark((host,), f"no script {wanted.target} in {wanted.cwd} there", copy))
        elif not wanted.force:
            names = [wanted.target] if facts.script_digest != script else []
            if files is not None and facts.files is not None:
                names = names or different(files, facts.files)
            if names:
                problem = f"{_some(names)} in {wanted.cwd} {'is' if len(names) == 1 else 'are'}"
                problem += f" not the same as {where}"
                found.append(Remark((host,), problem, f"{copy}, or pass --force"))
    return found


def different(ones: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """The files that only one side has, or whose digests differ."""
    return sorted(name for name in {*ones, *others} if ones.get(name) != others.get(name))


_REMEDIES: dict[Refused, str] = {
    "absent": "list it without GPUs, and pass --nproc N, the ranks of each host",
    "allocation": "request them with --gpus-per-node=N of sbatch, or remove --gpus",
    "busy": "choose other GPUs, as in HOST:0-3, or pass --force",
    "other": "choose its GPUs, as in HOST:0-3",
}


def _devices(there: _There, wanted: Wanted) -> list[Remark]:
    found = []
    for one, facts in there:
        host = (one.request.host,)
        if facts.gpus_refused is not None:
            remedy = _REMEDIES[facts.gpus_refused]
            found.append(Remark(host, facts.gpus_problem or "no GPUs", remedy))
        elif ranks_of(one.request, facts, wanted) is None:
            problem = "no GPUs there, so the number of ranks is unknown"
            found.append(Remark(host, problem, "pass --nproc N, the ranks of each host"))
        elif wanted.nproc is None and one.request.slots is None:
            continue
        elif facts.devices and (ranks_of(one.request, facts, wanted) or 0) > len(facts.devices):
            ranks = plural(ranks_of(one.request, facts, wanted) or 0, "rank")
            gpus = plural(len(facts.devices), "GPU")
            problem = f"{ranks} do not fit on {gpus} (NCCL does not support two on one device)"
            found.append(Remark(host, problem, "use fewer ranks there"))
    without = tuple(one.request.host for one, facts in there if not facts.devices)
    is_known = all(facts.gpus_refused is None for _, facts in there)
    if is_known and 0 < len(without) < len(there):
        problem = "it has no GPUs, but the other hosts do"
        found.append(Remark(without, problem, "leave it out of --hosts"))
    return found


def _addresses(hosts: Sequence[Surveyed]) -> tuple[dict[str, str], list[Remark]]:
    """Choose an address per host that all hosts that tested it can reach; refuse the others."""
    chosen: dict[str, str] = {}
    found = []
    for one in hosts:
        if one.facts is None:
            continue
        host = one.request.host
        asked = {
            other.request.host: other.reached[host]
            for other in hosts
            if other is not one and other.reached is not None and host in other.reached
        }
        usable = [
            address
            for address in one.facts.addresses
            if all(address in reached for reached in asked.values())
        ]
        if usable:
            chosen[host] = usable[0]
            continue
        likely, port = one.facts.addresses[0], one.facts.ports[-1]
        without = [name for name, reached in asked.items() if likely not in reached]
        tried = [one for one in one.facts.addresses if not one.startswith("127.")] or [likely]
        found.append(
            Remark(
                (host,),
                f"{_some(without)} cannot connect to it at {_some(tried)}, TCP port {port}",
                "check the network and the firewall between them",
            )
        )
    return chosen, found


def _notes(there: _There, wanted: Wanted) -> list[Remark]:
    notes = []
    for one, _ in there:
        offset_s = one.clock_offset_s or 0.0
        if abs(offset_s) >= CLOCK_S:
            direction = "ahead" if offset_s > 0 else "behind"
            text = f"its clock is {abs(offset_s):.1f} s {direction}"
            text += "; synchronize it (timedatectl set-ntp true)"
            notes.append(Remark((one.request.host,), text))
    for one, facts in there:
        if facts.gpus_note:
            notes.append(Remark((one.request.host,), facts.gpus_note))
    notes += [
        Remark((), note) for note in sorted({n for _, facts in there for n in facts.python_notes})
    ]
    on_cpu = [
        one.request.host
        for one, facts in there
        if not (facts.devices or one.request.slots or wanted.nproc) and facts.ranks
    ]
    if on_cpu and wanted.trains:
        notes.append(Remark(tuple(on_cpu), ON_CPU))
    return notes


def _row(
    one: Surveyed, addresses: Mapping[str, str], refused: set[str], wanted: Wanted
) -> list[str]:
    host = one.request.host
    if one.facts is None:
        state = one.unreachable.kind if one.unreachable else "unknown"
        return [host, _STATES.get(state, "unreachable"), *[_UNKNOWN] * (len(HEADING) - 2)]
    facts = one.facts
    ranks = ranks_of(one.request, facts, wanted)
    if facts.gpus_refused is not None:
        words = "busy" if facts.gpus_refused == "busy" else _UNKNOWN
    elif not wanted.trains:
        words = names_of(facts.devices) if facts.devices else "no GPUs"
    elif ranks is None:
        words = _UNKNOWN
    else:
        words = f"{ranks} on {names_of(facts.devices) if facts.devices else 'CPU'}"
    offset = _UNKNOWN if one.clock_offset_s is None else f"{one.clock_offset_s:+.2f} s"
    return [
        host,
        "not ready" if host in refused else "ready",
        facts.ddptop,
        facts.torch or _UNKNOWN,
        facts.python_version or _UNKNOWN,
        words,
        offset,
        addresses.get(host, _UNKNOWN),
    ]


_STATES = {"ddptop": "no ddptop", "version": "other ddptop", "denied": "no login"}
