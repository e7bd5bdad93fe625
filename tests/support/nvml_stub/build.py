"""Compiles the simulated driver library once per version of its source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")
LIBRARY = "libnvidia-ml.so.1"


class NoCompilerError(Exception):
    """This machine has no working C compiler."""


def build_library() -> Path:
    """The compiled library; its folder goes into LD_LIBRARY_PATH."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"ddptop-nvml-stub-{os.getuid()}" / digest
    library = folder / LIBRARY
    if library.exists():
        return library
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler (cc, gcc or clang) to build the NVML stand-in with")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=folder)
    os.close(fd)
    command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", f"-Wl,-soname,{LIBRARY}"]
    done = subprocess.run(
        [*command, "-o", temporary, str(SOURCE)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        Path(temporary).unlink()
        raise NoCompilerError(f"{compiler} cannot build the NVML stand-in: {done.stderr[-400:]}")
    Path(temporary).replace(library)
    return library
