"""The meaning of a device's figures, why it is throttled, and what to do about it."""

from __future__ import annotations

from ddptop.tui.render import units
from ddptop_runner.model import GpuSample

_SLOWED = {
    "application clocks": "its clocks were set with nvidia-smi -ac; -rac resets them",
    "power cap": "it is at its power limit, as busy devices are: not a problem",
    "hardware slowdown": "the board requests it because of heat or power: check fans, airflow, and "
    "the power supply",
    "sync boost": "it keeps the clocks of its sync boost group",
    "thermal, by software": "the driver prevents it from overheating: check fans, airflow, and "
    "neighboring cards",
    "thermal, by hardware": "it is too hot and runs much slower until it cools. Check fans, "
    "airflow, and neighboring cards",
    "power brake": "the power supply requests it: check the supply and its cables",
    "display clocks": "an attached display requires these clocks",
    "board limit": "limited by the board; not a problem if all devices are alike",
    "reliability": "limited by the chip's maximum voltage; not a problem if all devices are alike",
}

_RESET = frozenset({48, 62, 63, 64, 69, 74, 79, 92, 95, 109, 119, 120, 121, 122, 123, 125, 136})
_PROGRAM = frozenset({8, 11, 13, 31, 43, 45, 66, 110})


def slowed_help(reason: str) -> str:
    """Return what a throttle reason means and what to do; "" for an unknown one."""
    return _SLOWED.get(reason, "")


def xid_help(code: int) -> str:
    """Return what to do about an XID."""
    if code == 79:
        return "only a reset or reboot brings it back: check power, seating, and dmesg"
    if code in _PROGRAM:
        return "usually a fault of the program: see the log of its rank"
    if code in _RESET:
        return "reset the device, and have it checked if it recurs"
    return "see dmesg and nvidia-smi -q"


def explain_device(gpu: GpuSample) -> list[tuple[str, str]]:
    """Return headings and texts for the device and each of its figures."""
    part = ", a MIG instance" if gpu.parent_uuid is not None else ""
    name = f"{gpu.name}{part}" if gpu.name else f"a device without a name{part}"
    found = [(f"GPU {gpu.index}", f"{name}. The index is in PCI order, as in nvidia-smi.")]
    if gpu.lost:
        text = "The driver can no longer reach it. Only a reset or reboot brings it back."
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
    found += [
        (
            f"util {units.percent(gpu.util_percent)}",
            "Share of the last second in which a kernel ran. 100 % means that it was never idle, "
            "not that it computed efficiently: waiting in a collective shows 100 %, too.",
        ),
        (
            f"memory {units.size_of(gpu.mem_used_bytes, gpu.mem_total_bytes)}",
            "Used by all processes, without the driver's own share.",
        ),
        (
            f"temperature {units.celsius(gpu.temperature_c)}",
            "The device lowers its clocks"
            + (
                " when it overheats."
                if gpu.temperature_slowdown_c is None
                else f" at {units.celsius(gpu.temperature_slowdown_c)}."
            ),
        ),
        (
            f"power {units.watts(gpu.power_w, gpu.power_limit_w)}",
            "Current draw and limit. Full utilization at low power means that it is mostly "
            "waiting.",
        ),
    ]
    if gpu.unknown:
        text = "; ".join(f"{field.replace('_', ' ')}: {why}" for field, why in gpu.unknown.items())
        found.append(("n/a", f"Not available: {text}."))
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
