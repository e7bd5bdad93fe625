"""A stand-in NVIDIA driver for tests, so that the real pynvml runs where there is no GPU."""

from .build import NoCompilerError, build_library
from .driver import GIB, StubCall, StubDriver, StubGpu, StubProcess

__all__ = [
    "GIB",
    "NoCompilerError",
    "StubCall",
    "StubDriver",
    "StubGpu",
    "StubProcess",
    "build_library",
]
