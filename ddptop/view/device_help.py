"""Explains a device's figures, why it is throttled, and what to do about it."""

from __future__ import annotations

from ddptop.view.figures.devices import FIGURES
from ddptop_runner.devices import codes
from ddptop_runner.model.snapshot import GpuSample


def slowed_by(gpu: GpuSample) -> list[str]:
    """Why its clocks are lowered, except for harmless reasons."""
    return [
        reason for reason in gpu.throttle_reasons or [] if codes.throttle(reason).weight != "usual"
    ]


def explain_device(gpu: GpuSample) -> list[tuple[str, str]]:
    """Return headings and texts for the device and each of its figures."""
    part = ", MIG instance" if gpu.parent_uuid is not None else ""
    name = f"{gpu.name}{part}" if gpu.name else f"unnamed device{part}"
    found = [(f"GPU {gpu.index}", f"{name}. Devices are numbered in PCI order, as in nvidia-smi.")]
    if gpu.lost:
        text = "The driver can no longer reach the device. Only a reset or a reboot can recover it."
        return [*found, ("lost", f"{gpu.note}. {text}" if gpu.note else text)]
    if gpu.note:
        found.append(("note", gpu.note))
    found += [
        (f"slowed: {reason}", _sentence(codes.throttle(reason).remedy))
        for reason in gpu.throttle_reasons or []
    ]
    for code in gpu.xid or []:
        xid = codes.xid(code)
        found.append((f"XID {code}", f"{_sentence(xid.meaning)} {_sentence(xid.remedy)}"))
    found += [(f"{one.key} {one.text(gpu)}", one.explain(gpu)) for one in FIGURES if one.explain]
    if gpu.unknown:
        text = "; ".join(f"{field.replace('_', ' ')}: {why}" for field, why in gpu.unknown.items())
        found.append(("n/a", f"Not available: {text}."))
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
