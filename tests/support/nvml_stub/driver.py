"""Write the state that the stand-in driver library answers from, and read what was asked of it.

The state file is text, one `key value` per line. Lines before the first `gpu` describe the driver:

    driver 570.124.06          version
    cuda 12080                 CUDA version that the driver supports
    init 0                     NVML status that nvmlInit returns
    slow_ms 0                  how long every call takes
    generation 0               a change makes all that was looked up before it stale
    stale_status 1             what stale handles return
    v3_of_535 0                processes of version 3 in the layout of drivers 535.43 to 535.97
    overrun 0                  field values are written one entry too far, as real drivers do
    error <function> <status>  what that function returns, for every device; -1: it never returns,
                               -2: it ends the process by SIGSEGV

`gpu <index>` begins a device. The lines after it are its fields (see StubGpu), where -1 means
"not supported", and any number of

    process <pid> <bytes> compute|graphics <sm util> <pid that the utilization tells>
    xid <sequence number> <code>
    error <function> <status>
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from .build import build_library

GIB = 1024**3

_DRIVER_NUMBERS = {
    "init_status": "init",
    "slow_ms": "slow_ms",
    "generation": "generation",
    "stale_status": "stale_status",
    "v3_of_535": "v3_of_535",
    "overrun": "overrun",
}
"""Key in the state file, by attribute."""

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN = 999
HANG = -1
CRASH = -2


@dataclasses.dataclass
class StubProcess:
    """One process on a device."""

    pid: int
    mem_bytes: int | None = GIB
    kind: str = "compute"
    sm_util: int | None = None
    util_pid: int | None = None
    """PID that the driver reports with `sm_util`, if it differs."""


@dataclasses.dataclass
class StubGpu:
    """One device; None means that the device does not support the value."""

    index: int
    uuid: str = ""
    name: str = "NVIDIA H100 80GB HBM3"
    parent: str = ""
    """UUID of the device that this MIG instance is part of; its slot there is `minor`."""
    pci: str = ""
    serial: str = ""
    minor: int = -1
    lost: int = 0
    mem_total: int | None = 80 * GIB
    mem_used: int | None = 40 * GIB
    mem_reserved: int | None = GIB
    power_mw: int | None = 412_000
    power_limit_mw: int | None = 700_000
    power_default_mw: int | None = 700_000
    util: int | None = 97
    mem_util: int | None = 55
    temperature: int | None = 61
    temperature_slowdown: int | None = 87
    fan: int | None = None
    pstate: int | None = 0
    sm_clock: int | None = 1755
    mem_clock: int | None = 2619
    max_sm_clock: int | None = 1980
    max_mem_clock: int | None = 2619
    reasons: int | None = 0
    ecc_uncorrected: int | None = 0
    ecc_corrected: int | None = 0
    persistence: int | None = 1
    compute_mode: int | None = 0
    display_active: int | None = 0
    mig_mode: int | None = None
    encoder: int | None = 0
    decoder: int | None = 0
    pcie_kbps: int | None = 1000
    pcie_rx_kbps: int | None = None
    """Defaults to `pcie_kbps`."""
    energy_mj: int | None = 5_000_000
    remapped_correctable: int | None = 0
    remapped_uncorrectable: int | None = 0
    remap_pending: int = 0
    remap_failed: int = 0
    nvlink_count: int | None = 18
    nvlink_tx_kib: int | None = 0
    """Sent so far, over all links."""
    nvlink_rx_kib: int | None = 0
    util_age_ms: int = 0
    """The age of the processes' utilization samples."""
    xid_events: int = 1
    processes: list[StubProcess] = dataclasses.field(default_factory=list)
    xids: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    errors: dict[str, int] = dataclasses.field(default_factory=dict)
    """NVML status by function name."""

    def __post_init__(self) -> None:
        self.uuid = self.uuid or f"GPU-{self.index:08x}-1111-2222-3333-444455556666"
        self.pci = self.pci or f"00000000:{0x10 + self.index:02X}:00.0"
        if self.minor < 0:
            self.minor = self.index

    def lines(self) -> Iterator[str]:
        yield f"gpu {self.index}"
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("index", "processes", "xids", "errors") and value != "":
                yield f"{field.name} {-1 if value is None else value}"
        for process in self.processes:
            mem = -1 if process.mem_bytes is None else process.mem_bytes
            sm_util = -1 if process.sm_util is None else process.sm_util
            util_pid = process.pid if process.util_pid is None else process.util_pid
            yield f"process {process.pid} {mem} {process.kind} {sm_util} {util_pid}"
        yield from (f"xid {seq} {code}" for seq, code in self.xids)
        yield from (f"error {function} {status}" for function, status in self.errors.items())


@dataclasses.dataclass(frozen=True)
class StubCall:
    """A call made by a client."""

    at_ms: int
    pid: int
    function: str
    index: int | None
    status: int


class StubDriver:
    """A driver with devices, for programs started with `env()`.

    Every change is written at once and as a whole; inside `with stub.together():` once at the end.
    """

    def __init__(
        self,
        folder: Path,
        gpus: int | Iterable[StubGpu] = 2,
        *,
        driver: str = "570.124.06",
    ) -> None:
        self.library = build_library()
        self.folder = folder
        self.state_file = folder / "nvml-state"
        self.log_file = folder / "nvml-calls"
        self.gpus = [StubGpu(i) for i in range(gpus)] if isinstance(gpus, int) else list(gpus)
        self.driver = driver
        self.init_status = 0
        self.slow_ms = 0
        self.generation = 0
        self.stale_status = UNINITIALIZED
        self.v3_of_535 = 0
        self.overrun = 0
        self.errors: dict[str, int] = {}
        self._xid_seq = 0
        self._held = False
        self.write()

    def __enter__(self) -> StubDriver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.state_file.unlink(missing_ok=True)

    def env(self, base: dict[str, str] | None = None, *, log: bool = True) -> dict[str, str]:
        """The environment of a program that should find this driver."""
        variables = dict(os.environ if base is None else base)
        others = variables.get("LD_LIBRARY_PATH")
        folder = str(self.library.parent)
        variables["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else folder
        variables["DDPTOP_STUB_NVML_STATE"] = str(self.state_file)
        if log:
            variables["DDPTOP_STUB_NVML_LOG"] = str(self.log_file)
        return variables

    def gpu(self, index: int) -> StubGpu:
        return next(gpu for gpu in self.gpus if gpu.index == index)

    def set(self, index: int, **fields: Any) -> None:
        """Change fields of one device, such as util=3 or power_mw=None."""
        for name, value in fields.items():
            if not hasattr(self.gpu(index), name):
                raise AttributeError(name)
            setattr(self.gpu(index), name, value)
        self.write()

    def set_driver(self, **fields: Any) -> None:
        """Change driver, errors or one of the other lines that describe the driver."""
        for name, value in fields.items():
            if name not in ("driver", "errors", *_DRIVER_NUMBERS):
                raise AttributeError(name)
            setattr(self, name, value)
        self.write()

    def set_processes(self, index: int, processes: Sequence[StubProcess]) -> None:
        self.set(index, processes=list(processes))

    def unsupported(self, index: int, *functions: str, status: int = NOT_SUPPORTED) -> None:
        """Make functions return `status` for one device."""
        self.gpu(index).errors.update(dict.fromkeys(functions, status))
        self.write()

    def raise_xid(self, index: int, code: int) -> None:
        """Let the driver report an XID event to everyone who listens now."""
        self._xid_seq += 1
        self.gpu(index).xids.append((self._xid_seq, code))
        self.write()

    def hang(self, function: str, index: int | None = None) -> None:
        """Let a function never return, of one device or of all."""
        (self.errors if index is None else self.gpu(index).errors)[function] = HANG
        self.write()

    def crash(self, function: str, index: int | None = None) -> None:
        """Let a function end the process by SIGSEGV, of one device or of all."""
        (self.errors if index is None else self.gpu(index).errors)[function] = CRASH
        self.write()

    def forget_clients(self, status: int = UNINITIALIZED) -> None:
        """Make all that clients looked up stale, as when the driver is loaded again."""
        self.set_driver(generation=self.generation + 1, stale_status=status)

    def lose(self, index: int) -> None:
        """Let a device fall off the bus."""
        self.set(index, lost=1)

    def restore(self, index: int) -> None:
        """Bring a lost device back, for those who look it up again."""
        self.set(index, lost=0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the changes back, so that a client sees all of them or none."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.write()

    def write(self) -> None:
        if self._held:
            return
        lines = [f"driver {self.driver}", "cuda 12080"]
        lines += [f"{key} {getattr(self, name)}" for name, key in _DRIVER_NUMBERS.items()]
        lines += [f"error {function} {status}" for function, status in self.errors.items()]
        for gpu in self.gpus:
            lines += gpu.lines()
        temporary = self.state_file.with_name(f".{self.state_file.name}.{os.getpid()}")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(self.state_file)

    def calls(self) -> list[StubCall]:
        """Every call so far, in order."""
        if not self.log_file.exists():
            return []
        calls = []
        for line in self.log_file.read_text(encoding="utf-8").splitlines():
            at_ms, pid, function, index, status = line.split()
            number = None if index == "-" else int(index)
            calls.append(StubCall(int(at_ms), int(pid), function, number, int(status)))
        return calls

    def counts(self) -> Counter[str]:
        """Number of calls by function."""
        return Counter(call.function for call in self.calls())

    def clear_calls(self) -> None:
        self.log_file.unlink(missing_ok=True)
