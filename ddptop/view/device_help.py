"""Explains a device's figures, why it is throttled, and what to do about it."""

from __future__ import annotations

from ddptop.view.figures.devices import FIGURES
from ddptop_runner.model.snapshot import GpuSample

_SLOWED = {
    "application clocks": "clocks were set with nvidia-smi -ac; reset them with nvidia-smi -rac",
    "power cap": "at its power limit, which is normal for a busy device",
    "hardware slowdown": "requested by the board because of heat or power; check fans, airflow, "
    "and the power supply",
    "sync boost": "clocks are limited to those of its sync boost group",
    "thermal, by software": "the driver lowered its clocks to prevent overheating; check fans, "
    "airflow, and neighboring cards",
    "thermal, by hardware": "the device is too hot and runs much slower until it cools; check "
    "fans, airflow, and neighboring cards",
    "power brake": "requested by the power supply; check the supply and its cables",
    "display clocks": "clocks are limited by an attached display",
    "board limit": "limited by the board; not a problem if all devices are affected",
    "reliability": "limited by the chip's maximum voltage; not a problem if all devices are "
    "affected",
}

_CALM = frozenset({"power cap", "application clocks", "display clocks"})
"""Harmless reasons: the usual power limit, and clocks that a user set."""

_RESET = frozenset({48, 62, 63, 64, 69, 74, 79, 92, 95, 109, 119, 120, 121, 122, 123, 125, 136})
_PROGRAM = frozenset({8, 11, 13, 31, 43, 45, 66, 110})


def slowed_by(gpu: GpuSample) -> list[str]:
    """Why its clocks are lowered, except for harmless reasons."""
    return [reason for reason in gpu.throttle_reasons or [] if reason not in _CALM]


def slowed_help(reason: str) -> str:
    """Return what a throttle reason means and what to do; "" for an unknown one."""
    return _SLOWED.get(reason, "")


def xid_help(code: int) -> str:
    """Return what to do about an XID."""
    if code == 79:
        return "reset the device or reboot; if it recurs, check power, seating, and dmesg"
    if code in _PROGRAM:
        return "usually caused by the program; check the rank's log"
    if code in _RESET:
        return "reset the device; have it inspected if the error recurs"
    return "see dmesg and nvidia-smi -q"


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
        (f"slowed: {reason}", _sentence(slowed_help(reason) or "see nvidia-smi -q"))
        for reason in gpu.throttle_reasons or []
    ]
    meanings = gpu.xid_meanings or []
    for place, code in enumerate(gpu.xid or []):
        meaning = meanings[place] if place < len(meanings) else "unknown error"
        found.append((f"XID {code}", f"{_sentence(meaning)} {_sentence(xid_help(code))}"))
    found += [(f"{one.key} {one.text(gpu)}", one.explain(gpu)) for one in FIGURES if one.explain]
    if gpu.unknown:
        text = "; ".join(f"{field.replace('_', ' ')}: {why}" for field, why in gpu.unknown.items())
        found.append(("n/a", f"Not available: {text}."))
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
