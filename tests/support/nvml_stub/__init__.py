"""A simulated NVIDIA driver for tests, so that the real pynvml runs without a GPU."""

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
