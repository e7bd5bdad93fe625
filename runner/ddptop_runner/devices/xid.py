"""XIDs, the driver's reports of device errors, by NVML's event set and without waiting."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pynvml

from ddptop_runner.devices.nvml_calls import tally
from ddptop_runner.devices.words import NOT_LISTENING, NOT_SUPPORTED, Why, why_not

_MOST_EVENTS_PER_TICK = 64
_NEVER = {
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
}
"""A wait that ends so will end so each time."""


class XidWatch:
    """Listens to devices. An event set with a lost device is left behind, never touched again."""

    def __init__(self) -> None:
        self._set: Any | None = None
        self.broken = False
        """Whether listening ended by an error, so that it has to be started anew."""
        self.deaf: Why | None = None
        """Why no device is heard any more; None while listening."""

    def forget(self) -> None:
        """Leave the event set behind: NVML is started again."""
        self._set, self.broken = None, True
        self.deaf = NOT_LISTENING

    @staticmethod
    def address(handle: Any) -> int | None:
        """What tells handles apart: asking the device itself would touch one that may be lost."""
        return ctypes.cast(handle, ctypes.c_void_p).value

    def listen(self, handles: Sequence[Any]) -> tuple[dict[int | None, Why | None], list[Any]]:
        """Start anew with these devices.

        Returns why each device, by its handle's address, cannot report XIDs (None: it can), and the
        handles of devices that turned out to be lost.
        """
        self._set, self.broken, self.deaf = None, False, None
        reasons: dict[int | None, Why | None] = {}
        lost: list[Any] = []
        try:
            tally.calls += 1
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            return dict.fromkeys(map(self.address, handles), why_not(error.value)), lost
        for handle in handles:
            reasons[self.address(handle)] = NOT_SUPPORTED
            try:
                tally.calls += 2
                types = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                if types & pynvml.nvmlEventTypeXidCriticalError:
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, events
                    )
                    reasons[self.address(handle)] = None
            except pynvml.NVMLError as error:
                reasons[self.address(handle)] = why_not(error.value)
                if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    lost.append(handle)
        if None in reasons.values():
            self._set = events
        return reasons, lost

    def collect(self) -> list[tuple[int | None, int]]:
        """(handle address, XID) of each report since the last call."""
        reports: list[tuple[int | None, int]] = []
        while self._set is not None and len(reports) < _MOST_EVENTS_PER_TICK:
            tally.calls += 1
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._set, self.deaf = None, why_not(error.value)
                    self.broken = error.value not in _NEVER
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                reports.append((self.address(event.device), int(event.eventData)))
        return reports
