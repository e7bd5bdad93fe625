"""What a device's figures mean, why it is slowed down, and what to do about it."""

from __future__ import annotations

from ddptop.tui.render import units
from ddptop_runner.model import GpuSample

_SLOWED = {
    "application clocks": "a person set its clocks (nvidia-smi -ac); -rac takes that back",
    "power cap": "it draws what its power limit allows, as busy devices do: no trouble",
    "hardware slowdown": "the board asks for it, for heat or power: look at fans, airflow and "
    "power supply",
    "sync boost": "it keeps in step with other devices of its group",
    "thermal, by software": "the driver keeps it from getting too hot: look at fans, airflow and "
    "its neighbours",
    "thermal, by hardware": "it is too hot: it runs far slower until it cools. Look at fans, "
    "airflow and its neighbours",
    "power brake": "the machine's power supply asks for less: look at the supply and its cables",
    "display clocks": "a display that hangs on it asks for these clocks",
    "board limit": "the board limits it; no trouble where all devices are alike",
    "reliability": "the voltage that its chip may have limits it; no trouble where all are alike",
}

_RESET = frozenset({48, 62, 63, 64, 69, 74, 79, 92, 95, 109, 119, 120, 121, 122, 123, 125, 136})
_PROGRAM = frozenset({8, 11, 13, 31, 43, 45, 66, 110})


def slowed_help(reason: str) -> str:
    """What a throttle reason means and what to do; empty for one that is not known."""
    return _SLOWED.get(reason, "")


def xid_help(code: int) -> str:
    """What to do about an error that the driver reported."""
    if code == 79:
        return "only a reset or a reboot brings it back: look at power and seating, and dmesg"
    if code in _PROGRAM:
        return "mostly a fault of the program: see the log of its rank"
    if code in _RESET:
        return "reset the device, and have it checked when it comes again"
    return "dmesg and nvidia-smi -q tell more"


def explain_device(gpu: GpuSample) -> list[tuple[str, str]]:
    """Headings and texts on the device and each of its figures."""
    part = ", a MIG instance" if gpu.parent_uuid is not None else ""
    name = f"{gpu.name}{part}" if gpu.name else f"a device whose name is not told{part}"
    found = [(f"GPU {gpu.index}", f"{name}. The index is that of nvidia-smi, in PCI order.")]
    if gpu.lost:
        text = "The driver cannot reach it any more. Only a reset or a reboot brings it back."
        return [*found, ("lost", f"{gpu.note}. {text}" if gpu.note else text)]
    if gpu.note:
        found.append(("note", gpu.note))
    found += [
        (f"slowed: {reason}", _sentence(slowed_help(reason) or "see nvidia-smi -q"))
        for reason in gpu.throttle_reasons or []
    ]
    meanings = gpu.xid_meanings or []
    for place, code in enumerate(gpu.xid or []):
        meaning = meanings[place] if place < len(meanings) else "an error without a name here"
        found.append((f"XID {code}", f"{_sentence(meaning)} {_sentence(xid_help(code))}"))
    found += [
        (
            f"util {units.percent(gpu.util_percent)}",
            "The share of the last second in which some kernel ran. 100 % says that it is never "
            "idle, not that it computes well: a rank that waits in a collective reads 100 %, too.",
        ),
        (
            f"memory {units.size_of(gpu.mem_used_bytes, gpu.mem_total_bytes)}",
            "What all processes hold on it, without the driver's own part.",
        ),
        (
            f"temperature {units.celsius(gpu.temperature_c)}",
            "It lowers its clocks"
            + (
                " when it gets too hot."
                if gpu.temperature_slowdown_c is None
                else f" from {units.celsius(gpu.temperature_slowdown_c)} on."
            ),
        ),
        (
            f"power {units.watts(gpu.power_w, gpu.power_limit_w)}",
            "What it draws, and its limit. Full utilization at little power is work that only "
            "waits.",
        ),
    ]
    if gpu.unknown:
        text = "; ".join(f"{field.replace('_', ' ')}: {why}" for field, why in gpu.unknown.items())
        found.append(("n/a", f"What the driver does not tell, and why: {text}."))
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
