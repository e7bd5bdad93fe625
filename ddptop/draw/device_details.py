"""Draws every figure of one device, and explains why some are missing."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.draw.devices import LOST_WORDS, Owners, program
from ddptop.view.device_help import slowed_by
from ddptop.view.figures.devices import FIELD_NAMES, FIGURES, known
from ddptop.view.text import Line, clip, field, fit, join, line, pad, rule, width, wrap
from ddptop_runner.base import units
from ddptop_runner.devices import codes
from ddptop_runner.launch.gpus.usage import unknown_holder
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

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
