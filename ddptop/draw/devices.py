"""Draws devices: their figures, problems, users, and whether they are wasted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ddptop.charts.spark import spark
from ddptop.draw.panels import short_name
from ddptop.job.figures.columns import Column, Row
from ddptop.job.figures.devices import FIELD_NAMES, FIGURES, heat, known
from ddptop.job.help import slowed_by
from ddptop.job.record import Job
from ddptop.style import Line, blocks, clip, field, fill, fit, join, line, pad, rule, width, wrap
from ddptop_runner.base import units
from ddptop_runner.devices import codes
from ddptop_runner.judge.balance.rank_devices import is_own
from ddptop_runner.launch.gpus.usage import SMALL_CONTEXT_BYTES, unknown_holder
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

Holder = Callable[[GpuSample], Line]
"""Formats who uses a device, and its problems."""

Owners = Mapping[int, "tuple[str, int | None]"]
"""Job and rank by PID."""

NO_HOSTS: Mapping[str, str] = {}
LOST_WORDS = "lost: the driver is not responding"
_TROUBLE_CELLS = 200
_HOLDER_CELLS = 72
RECENT_BUCKETS = 60
"""Number of ten-second buckets in a sparkline of ten minutes."""
_BAR_MOST = 60
_CURVES = ((140, 30), (100, 15))
"""(minimum width, cells of a sparkline)."""


def device_lines(
    gpus: Sequence[GpuSample],
    cells: int,
    holder: Holder,
    recent: Mapping[str, Sequence[float | None]] | None = None,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> list[Line]:
    """A row of column names, then one line per device: bars, figures, and who uses it.

    Args:
        gpus: the devices.
        cells: the width.
        holder: formats who uses a device.
        recent: by UUID, utilization in the last ten minutes, in percent, oldest first.
        hosts: short host names, if there are several hosts.
    """
    names = [short_name(gpu.name) for gpu in gpus]
    differ = len(set(names)) > 1 and cells >= 96
    name_cells = min(18, max(map(len, names), default=0)) + 2 if differ else 0
    spark_cells = 0 if recent is None else next((n for least, n in _CURVES if cells >= least), 0)
    full = cells >= 72
    memory = [
        units.size_of(gpu.mem_used_bytes, gpu.mem_total_bytes)
        if full
        else units.size(gpu.mem_used_bytes)
        for gpu in gpus
    ]
    power = [units.watts(gpu.power_w, gpu.power_limit_w if full else None) for gpu in gpus]
    holders = [holder(gpu) for gpu in gpus]
    index_cells = max((len(label(gpu, hosts)) for gpu in gpus), default=1) + 2
    memory_cells = max(map(len, memory), default=0)
    power_cells = max(5, *map(len, power)) if power else 5
    room = cells - index_cells - name_cells - memory_cells - power_cells - 19
    room -= spark_cells + bool(spark_cells)
    bars = min(_BAR_MOST, room - min(max(map(width, holders), default=0), max(0, room - 10)))
    util_cells, memory_bar_cells = max(0, bars // 2), max(0, bars - bars // 2)
    head = "".join(
        (
            " " * index_cells,
            pad("device" if name_cells else "", name_cells),
            pad("util", util_cells + 6),
            pad(" last 10m", spark_cells + 1) if spark_cells else "",
            pad(" memory", memory_bar_cells + memory_cells + 2),
            f"{'temp':>6} ",
            f"{'power':>{power_cells}}  ",
            "used by" if any(holders) else "",
        )
    )
    lines = [fit(line((head, "dim")), cells)]
    unseen = first_seen(recent or {})
    for gpu, name, used, watts, held in zip(gpus, names, memory, power, holders, strict=True):
        who: Line = (
            (f" {label(gpu, hosts):>{index_cells - 2}} ", "strong"),
            (pad(name, name_cells), "dim"),
        )
        if gpu.lost:
            lines.append(fit((*who, (f"✗ {gpu.note or LOST_WORDS}", "bad")), cells))
            continue
        figures: Line = (
            *_bar("util", gpu, util_cells),
            (f"{units.percent(gpu.util_percent):>6} ", known(gpu.util_percent)),
            *_recent((recent or {}).get(gpu.uuid or "", ()), spark_cells, unseen),
            *_bar("memory", gpu, memory_bar_cells),
            (f" {used:>{memory_cells}} ", known(gpu.mem_used_bytes)),
            (f"{units.celsius(gpu.temperature_c):>6} ", heat(gpu)),
            (f"{watts:>{power_cells}}  ", known(gpu.power_w)),
        )
        lines.append(fit((*who, *figures, *held), cells))
    return lines


def _recent(values: Sequence[float | None], cells: int, unseen: int) -> Line:
    """Recent utilization as a sparkline."""
    if not cells:
        return ()
    return ((small_curve(values, cells, unseen), "median"), (" ", ""))


def first_seen(recent: Mapping[str, Sequence[float | None]]) -> int:
    """How many of the oldest values are unknown for all devices."""
    known_ones = (
        next((place for place, value in enumerate(values) if value is not None), len(values))
        for values in recent.values()
    )
    return min(known_ones, default=0)


def small_curve(values: Sequence[float | None], cells: int, unseen: int = 0) -> str:
    """Percentages as a sparkline; each dot is the mean of its buckets.

    Args:
        values: up to ten minutes of values.
        cells: width of the sparkline.
        unseen: how many of the oldest values to skip, so that a short history begins at the left.
    """
    dots = min(RECENT_BUCKETS, 2 * cells)
    padded = [*list(values)[-RECENT_BUCKETS:][unseen:], *([None] * RECENT_BUCKETS)]
    shares: list[float | None] = []
    for dot in range(dots):
        first, last = dot * RECENT_BUCKETS // dots, (dot + 1) * RECENT_BUCKETS // dots
        known_ones = [value for value in padded[first:last] if value is not None]
        shares.append(sum(known_ones) / len(known_ones) if known_ones else None)
    return spark(shares, 0.0, 100.0)


def label(gpu: GpuSample, hosts: Mapping[str, str] = NO_HOSTS) -> str:
    """The device's index, or `node1:0` if `hosts` has short host names.

    A MIG instance is marked as part of its device.
    """
    host = f"{hosts[gpu.host]}:" if gpu.host is not None and gpu.host in hosts else ""
    return f"{host}{gpu.index}m" if gpu.parent_uuid is not None else f"{host}{gpu.index}"


def _bar(figure: str, gpu: GpuSample, cells: int) -> Line:
    of = next(one.bar for one in FIGURES if one.key == figure and one.bar is not None)
    return blocks(of.share(gpu), cells, of.style(gpu))


# --- problems of a device -------------------------------------------------------------------------


def device_trouble(gpu: GpuSample, brief: bool = False) -> Line:
    """Throttling, XID errors, or failing memory; `brief` omits reasons."""
    parts: list[Line] = []
    if gpu.xid:
        parts.append(line((f"XID {','.join(map(str, gpu.xid))}", "bad")))
    if gpu.ecc_uncorrected:
        parts.append(line((f"{gpu.ecc_uncorrected} ECC", "bad")))
    if gpu.remap_failed:
        parts.append(
            line(
                ("replace it" if brief else "no spare memory rows left: replace the device", "bad")
            )
        )
    elif gpu.remap_pending:
        parts.append(line(("reset" if brief else "row remap pending: reset the device", "warn")))
    if reasons := slowed_by(gpu):
        text = _brief_reason(reasons) if brief else "; ".join(reasons)
        parts.append(line((f"▼ {text}", "warn")))
    if gpu.note and not (gpu.lost or gpu.remap_failed or gpu.remap_pending):
        parts.append(line((f"i {'note' if brief else gpu.note}", "dim")))
    return fill(parts, _TROUBLE_CELLS, "  ")


def _brief_reason(reasons: Sequence[str]) -> str:
    causes = {codes.throttle(reason).cause for reason in reasons}
    return "hot" if "heat" in causes else "power" if "power" in causes else "throttled"


# --- who uses a device ----------------------------------------------------------------------------


def holder_text(gpu: GpuSample, owners: Owners | None = None, *, brief: bool = False) -> Line:
    """A device's problems and who uses it: jobs and ranks, or user and command.

    `brief` omits reasons to leave room for the user.
    """
    held: dict[str, list[int]] = {}
    others: list[str] = []
    for process in gpu.processes or []:
        job, rank = (owners or {}).get(process.pid, (process.job, process.rank))
        if job is not None:
            held.setdefault(job, []).extend([] if rank is None else [rank])
        else:
            others.append(stranger(process))
    parts = [
        device_trouble(gpu, brief),
        *(line((clip(job, 20), ""), (_ranks(ranks), "dim")) for job, ranks in sorted(held.items())),
    ]
    parts += [line((text, "dim")) for text in dict.fromkeys(others)]
    if gpu.processes is None:  # a busy device may well be used by a job
        parts.append(line(("n/a", "dim")))
    elif (unknown := unknown_holder(gpu)) is not None:
        parts.append(line((unknown if gpu.processes else f"busy: {unknown}", "dim")))
    elif not gpu.processes:
        parts.append(line(("free", "dim")))
    return fill(parts, _HOLDER_CELLS, "  ")


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f" {units.name_ranks(list(ranks), compact=True)}"


def stranger(process: GpuProcess) -> str:
    """`bob: python eval.py`, or the PID if unknown."""
    if process.user is None and process.command is None:
        return f"pid {process.pid}"
    return f"{process.user or 'n/a'}: {clip(program(process.command), 20)}"


def program(command: str | None) -> str:
    """A command without its program's directory: `/opt/env/bin/python a.py` as `python a.py`."""
    first, space, rest = (command or "?").partition(" ")
    return first.rpartition("/")[2] + space + rest


def rank_holder(view: Job) -> Holder:
    """Formats which of the job's ranks use a device, their name for it, and who else uses it."""
    ranks = view.snapshot.ranks if view.snapshot is not None else []
    mine = {rank.pid for rank in ranks if rank.pid is not None}
    if view.foreign is not None:
        mine.update(view.foreign.pids)

    def holder(gpu: GpuSample) -> Line:
        parts: list[Line] = []
        own = [rank for rank in ranks if is_own(rank, gpu)]
        if own:
            parts.append(line((units.name_ranks([rank.rank for rank in own], compact=True), "dim")))
        names = {rank.cuda_device for rank in own if rank.cuda_device is not None}
        if len(names) == 1 and (name := names.pop()) != gpu.index:
            parts.append(line((f"cuda:{name}", "dim")))
        parts.insert(0, device_trouble(gpu, brief=True))
        strangers = [p for p in gpu.processes or [] if p.job != view.name and p.pid not in mine]
        if strangers:
            parts.append(line((f"+{len(strangers)} from outside this job", "warn")))
        return fill(parts, 48, " ")

    return holder


WASTED_S = 120.0
"""A device that is in use but idle for this long is wasted."""


def wasted_s(gpu: GpuSample, idle_s: Mapping[str, float]) -> float | None:
    """How long a device in use has been idle; None if it is busy or free."""
    spent_s = idle_s.get(gpu.uuid or "", 0.0)
    held = any((p.mem_used_bytes or 0) > SMALL_CONTEXT_BYTES for p in gpu.processes or [])
    if gpu.lost or not held or spent_s < WASTED_S or (gpu.util_percent or 0) > 1:
        return None
    return spent_s


def wasted_words(gpu: GpuSample, idle_s: Mapping[str, float]) -> Line:
    """`▲ idle for 12m`; empty if it is not wasted."""
    spent_s = wasted_s(gpu, idle_s)
    if spent_s is None:
        return ()
    return line((f"▲ idle for {units.brief_duration(spent_s)}", "warn"))


def holder_words(
    owners: Owners, idle_s: Mapping[str, float], here: str, *, brief: bool = False
) -> Holder:
    """Formats who uses a device, its problems, and whether it is wasted.

    Args:
        owners: job and rank of each process on this host, by PID.
        idle_s: how long each device has been idle, by UUID.
        here: this host.
        brief: whether there is little room.
    """

    def holder(gpu: GpuSample) -> Line:
        known: Owners = owners if gpu.host in (None, here) else {}
        parts = [wasted_words(gpu, idle_s), holder_text(gpu, known, brief=brief)]
        return fill(parts, 200, "  ")

    return holder


def common_name(gpus: Sequence[GpuSample]) -> str | None:
    """The devices' name if all have the same one."""
    names = {gpu.name for gpu in gpus if gpu.parent_uuid is None}
    return names.pop() if len(names) == 1 else None


BAR_CELLS = 10

_GPU = Column("gpu", "GPU", 4)
_HELD = Column("held", " used by", 20, flex=True)


def device_columns(cells: int, names_differ: bool, label_cells: int = 4) -> tuple[Column, ...]:
    """The columns of a table of that width; `label_cells` is the width of a device's label."""
    curve = 30 if cells >= 150 else 15
    columns = [replace(_GPU, width=max(4, label_cells))]
    if cells >= 160 and names_differ:
        columns.append(Column("name", "device", 18, drop=10))
    for one in FIGURES:
        if not one.title or cells < one.least:
            continue
        if one.bar is not None:
            columns.append(Column(f"{one.key}_bar", "", BAR_CELLS, drop=one.bar.drop))
        columns.append(Column(one.key, one.title, one.width, ">", one.drop))
        if one.key == "util":
            columns.append(Column("recent", "last 10m", curve, drop=7))
    return (*columns, _HELD)


def device_row(
    gpu: GpuSample,
    owners: Owners,
    recent: Mapping[str, Sequence[float | None]],
    idle_s: Mapping[str, float],
    curve: int,
    *,
    unseen: int = 0,
    brief: bool = False,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> Row:
    """A device's cells by column.

    Args:
        gpu: the device.
        owners: job and rank by PID.
        recent: by UUID, utilization in the last ten minutes, in percent.
        idle_s: by UUID, how long each device has been idle.
        curve: width of its sparkline.
        unseen: the result of `first_seen`.
        brief: whether there is no room for reasons.
        hosts: short host names, if there are several hosts.
    """
    head = {
        "gpu": (f"{label(gpu, hosts):>3}", "strong"),
        "name": (short_name(gpu.name), "dim"),
        "recent": (small_curve(recent.get(gpu.uuid or "", ()), curve, unseen), "median"),
    }
    if gpu.lost:
        return {**head, "held": line((f" ✗ {gpu.note or LOST_WORDS}", "bad"))}
    shown = [one for one in FIGURES if one.title]
    return {
        **head,
        **{one.key: one.styled(gpu) for one in shown},
        **{
            f"{one.key}_bar": blocks(one.bar.share(gpu), BAR_CELLS, one.bar.style(gpu))
            for one in shown
            if one.bar is not None
        },
        "held": _held(gpu, owners, idle_s, brief=brief),
    }


def _held(gpu: GpuSample, owners: Owners, idle_s: Mapping[str, float], *, brief: bool) -> Line:
    """A device's problems and who uses it; for a device split into MIG instances, their number."""
    parts = [wasted_words(gpu, idle_s), holder_text(gpu, owners, brief=brief)]
    if gpu.mig_instances:
        parts = [device_trouble(gpu, brief)]
        parts.append(line((f"{units.plural(len(gpu.mig_instances), 'MIG instance')}", "dim")))
    return (" ", ""), *fill(parts, 200, "  ")


# --- processes ------------------------------------------------------------------------------------

PROCESS_COLUMNS = (
    Column("pid", "PID", 8, ">"),
    Column("user", "user", 10, drop=3),
    Column("job", "job", 16, flex=True, most=30),
    Column("rank", "rank", 4, ">"),
    Column("memory", "memory", 9, ">"),
    Column("sm", "SM", 5, ">", drop=1),
    Column("command", " command", 14, flex=True, drop=2),
)


def process_row(process: GpuProcess, owners: Owners) -> Row:
    """Cells by column for a process on a device."""
    job, rank = owners.get(process.pid, (process.job, process.rank))
    command = program(process.command) if process.command else process.note or units.NOT_AVAILABLE
    return {
        "pid": (str(process.pid), "strong"),
        "user": (process.user or units.NOT_AVAILABLE, known(process.user)),
        "job": (job or (units.NOT_AVAILABLE if process.note else "no job"), "" if job else "dim"),
        "rank": ("" if rank is None else str(rank), ""),
        "memory": (units.size(process.mem_used_bytes), known(process.mem_used_bytes)),
        "sm": (units.percent(process.sm_util_percent), known(process.sm_util_percent)),
        "command": (f" {command}", "dim"),
    }


def heaviest_first(processes: Sequence[GpuProcess]) -> list[GpuProcess]:
    """The processes that use the most memory first."""
    return sorted(processes, key=lambda process: -(process.mem_used_bytes or 0))


_LABEL_CELLS = 10


def detail_lines(
    gpu: GpuSample,
    cells: int,
    rows: int,
    owners: Owners | None = None,
    *,
    processes: bool = True,
) -> list[Line]:
    """The device's identity and state, its figures, its processes, and what is unknown.

    If there are too few `rows`, the processes and then the rarer figures are cut, with a note.
    Without `processes`, remedies for throttling and errors are shown instead.
    """
    title = f"GPU {gpu.index}"
    if gpu.parent_uuid is not None:
        title += ", MIG instance"
    facts = [text for text in (gpu.name, gpu.pci_bus_id, gpu.uuid) if text]
    note = line((clip("   ".join(facts), max(0, cells - 20)), "dim"))
    first = [rule(title, cells, note), *_state(gpu, cells, helps=not processes)]
    last: list[Line] = []
    if not gpu.lost:
        for name, parts in _figures(gpu).items():
            lines = _flow(name, parts, cells)
            if name in ("load", "memory"):
                first += lines
            else:
                last += lines
    last += _unknown(gpu, cells)
    if not processes:
        return _cut([*first, *last], rows)
    room = max(4, rows - len(first) - len(last))
    return _cut([*first, *_cut(_processes(gpu, cells, owners or {}), room), *last], rows)


def _cut(lines: list[Line], rows: int) -> list[Line]:
    if len(lines) <= rows or rows < 1:
        return lines[:rows]
    missing = len(lines) - rows + 1
    return [*lines[: rows - 1], line((f" and {units.plural(missing, 'line')} more", "dim"))]


def _state(gpu: GpuSample, cells: int, *, helps: bool) -> list[Line]:
    if gpu.lost:
        return _flow("state", _words(f"✗ {gpu.note or LOST_WORDS}", "bad", cells), cells)
    lines: list[Line] = []
    if gpu.note:
        lines += _flow("state", _words(f"i {gpu.note}", "dim", cells), cells)
    if slowed := slowed_by(gpu):
        lines += _flow("slowed", _words(f"▼ {'; '.join(slowed)}", "warn", cells), cells)
        if helps:
            lines += _flow("", _words(codes.throttle(slowed[0]).remedy, "dim", cells), cells)
    for code in gpu.xid or []:
        xid = codes.xid(code)
        lines += _flow("XID", _words(f"✗ {code}: {xid.meaning}", "bad", cells), cells)
        if helps:
            lines += _flow("", _words(xid.remedy, "dim", cells), cells)
    if lines:
        return lines
    if gpu.throttle_reasons is None and gpu.xid is None:
        return _flow("state", [line(("n/a", "dim"))], cells)
    return _flow("state", [line(("● the driver reports no problems", "ok"))], cells)


def _words(text: str, style: str, cells: int) -> list[Line]:
    return [line((part, style)) for part in wrap(text, max(10, cells - _LABEL_CELLS - 2), 3)]


def _figures(gpu: GpuSample) -> dict[str, list[Line]]:
    """Every figure, by the name of its row."""
    rows: dict[str, list[Line]] = {
        name: [] for name in ("load", "memory", "thermal", "clocks", "errors")
    }
    for one in FIGURES:
        if one.detail is None:
            continue
        name, label = one.detail
        text, style = one.styled(gpu)
        if one.value(gpu) is None:
            style = "dim"
        elif style == "dim" or one.key == "memory":
            style = ""
        rows[name].append(field(label, text, style))
    calm = [reason for reason in gpu.throttle_reasons or [] if reason not in slowed_by(gpu)]
    if calm:
        rows["clocks"].append(field("limited by", "; ".join(calm), ""))
    if gpu.remap_pending:
        rows["errors"].append(line(("row remap pending: reset the device", "warn")))
    if gpu.remap_failed:
        rows["errors"].append(line(("no spare rows left: replace the device", "bad")))
    xid = units.NOT_AVAILABLE if gpu.xid is None else ", ".join(map(str, gpu.xid)) or "none"
    rows["errors"].append(field("XID", xid, known(gpu.xid)))
    if gpu.mig_instances:
        rows["MIG"] = [line((uuid, "")) for uuid in gpu.mig_instances]
    return {name: parts for name, parts in rows.items() if parts}


def _unknown(gpu: GpuSample, cells: int) -> list[Line]:
    """Why figures are missing, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in gpu.unknown.items():
        word = FIELD_NAMES.get(name, name.replace("_", " "))
        if word not in (known := reasons.setdefault(reason, [])):
            known.append(word)
    lines: list[Line] = []
    for reason, names in reasons.items():
        text = f"{', '.join(names)}: {reason}"
        name = "" if lines else "n/a"
        lines += _flow(name, _words(text, "dim", cells), cells)
    return lines


def _processes(gpu: GpuSample, cells: int, owners: Owners) -> list[Line]:
    if gpu.processes is None:
        return []
    if not gpu.processes:
        unknown = unknown_holder(gpu)
        text = "none; the device is free" if unknown is None else f"none listed; busy: {unknown}"
        return _flow("processes", _words(text, "dim", cells), cells)
    job = pad("job", _job_cells(cells))
    head = f" {'PID':>8}  {'user':<10} {'memory':>9} {'SM':>6}  {job} command"
    return [
        fit(line((head, "dim")), cells),
        *(_process(process, cells, owners) for process in _heaviest_first(gpu.processes)),
    ]


def _job_cells(cells: int) -> int:
    return 30 if cells >= 100 else 18


def _heaviest_first(processes: Sequence[GpuProcess]) -> list[GpuProcess]:
    return sorted(processes, key=lambda process: -(process.mem_used_bytes or 0))


def _process(process: GpuProcess, cells: int, owners: Owners) -> Line:
    job, rank = owners.get(process.pid, (process.job, process.rank))
    whose = units.NOT_AVAILABLE if process.note else "-"
    if job is not None:
        whose = job if rank is None else f"{clip(job, _job_cells(cells) - 9)} rank {rank}"
    memory, share = process.mem_used_bytes, process.sm_util_percent
    command = program(process.command) if process.command else process.note or units.NOT_AVAILABLE
    spans: Line = (
        (f" {process.pid:>8}  ", "strong"),
        (pad(process.user or units.NOT_AVAILABLE, 10) + " ", "" if process.user else "dim"),
        (f"{units.size(memory):>9} ", "" if memory is not None else "dim"),
        (f"{units.percent(share):>6}  ", "" if share is not None else "dim"),
        (pad(whose, _job_cells(cells)) + " ", "" if job else "dim"),
        (command, "dim"),
    )
    return fit(spans, cells)


def _flow(name: str, parts: Sequence[Line], cells: int) -> list[Line]:
    """Parts after a label, wrapped if they do not fit."""
    rows: list[list[Line]] = [[]]
    room = cells - _LABEL_CELLS - 1
    for part in parts:
        if rows[-1] and width(join([*rows[-1], part])) > room:
            rows.append([])
        rows[-1].append(part)
    lines: list[Line] = []
    for place, row in enumerate(rows):
        head = pad(name if place == 0 else "", _LABEL_CELLS)
        lines.append(fit(line((f" {head}", "dim"), *join(row)), cells))
    return lines
