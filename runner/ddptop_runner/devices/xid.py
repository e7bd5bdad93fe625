"""XIDs, the driver's reports of device errors, by NVML's event set and without waiting."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pynvml

_MOST_EVENTS_PER_TICK = 64


class XidWatch:
    """Listens to devices. An event set with a lost device is left behind, never touched again."""

    def __init__(self) -> None:
        self._set: Any | None = None
        self.broken = False
        """Whether listening ended by an error, so that it has to be started anew."""

    @staticmethod
    def address(handle: Any) -> int | None:
        """What tells handles apart: asking the device itself would touch one that may be lost."""
        return ctypes.cast(handle, ctypes.c_void_p).value

    def listen(self, handles: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Start anew with these devices; returns those that can report XIDs and those lost."""
        self._set, self.broken = None, False
        heard: list[Any] = []
        lost: list[Any] = []
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return heard, lost
        for handle in handles:
            try:
                types = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                if types & pynvml.nvmlEventTypeXidCriticalError:
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, events
                    )
                    heard.append(handle)
            except pynvml.NVMLError as error:  # the others: not supported, not permitted
                if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    lost.append(handle)
        if heard:
            self._set = events
        return heard, lost

    def collect(self) -> list[tuple[int | None, int]]:
        """(handle address, XID) of each report since the last call."""
        reports: list[tuple[int | None, int]] = []
        while self._set is not None and len(reports) < _MOST_EVENTS_PER_TICK:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._set, self.broken = None, True
                break
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                reports.append((self.address(event.device), int(event.eventData)))
        return reports
