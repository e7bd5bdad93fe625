"""Installs this version of ddptop on another machine, in its own environment.

One tar stream holds ddptop and its requirements as they are installed here, so the other machine
needs neither a checkout nor a network, but a Python of the same version and platform. torch is not
included: jobs run under their own interpreter.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.metadata as metadata
import importlib.util
import io
import json
import shlex
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.launch.ssh import FAILED, VENVS, is_here, ssh_argv, why_unreachable
from ddptop_runner.store.log_clean import one_line
from ddptop_runner.version import __version__

LIMIT_S = 300.0
_PACKAGES = ("ddptop", "ddptop_runner")

_INSTALL = r"""
import hashlib, io, json, os, shutil, subprocess, sys, sysconfig, tarfile
def end(problem, remedy):
    print(json.dumps({"problem": problem, "remedy": remedy}))
    sys.exit(0)
facts = json.loads(sys.stdin.buffer.readline())
payload = sys.stdin.buffer.read()
if len(payload) != facts["bytes"]:
    end("only some of the files arrived", "try again")
found = sys.version_info[:2]
target = os.path.join(os.path.expanduser("~"), facts["venvs"], facts["version"])
mark = os.path.join(target, "ddptop-node")
stamp = os.path.join(target, "installed")
this = hashlib.sha256(payload).hexdigest() + " " + sys.executable
try:
    with open(stamp) as file:
        if file.read() == this and os.access(mark, os.X_OK):
            print(json.dumps({"folder": target}))
            sys.exit(0)
except (IOError, OSError):
    pass
if [list(found), sysconfig.get_platform()] != facts["platform"]:
    end("its Python is not the same version and platform as the one here",
        "pass --python PATH of Python %d.%d there" % tuple(facts["platform"][0]))
packages = os.path.join(target, "lib", "python%d.%d" % found, "site-packages")
try:
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    if os.path.exists(mark):
        os.remove(mark)
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", target], check=True,
                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        archive.extractall(packages)
except subprocess.CalledProcessError as error:
    output = error.stdout.decode(errors="replace").strip()[-300:]
    end("no environment in %s (%s)" % (target, output),
        "install python3-venv there, or pass --python PATH")
except OSError as error:
    end("%s cannot be written (%s)" % (target, error.strerror), "check the home there")
python = os.path.join(target, "bin", "python")
start = subprocess.run([python, "-E", "-c",
    "import ddptop_runner.base.start as s; print(s.own_command('node')[-2])"],
    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
if start.returncode:
    end("it does not start: " + start.stderr.decode(errors="replace").strip()[-300:], "try again")
with open(mark + ".new", "w") as file:
    file.write('#!/bin/sh\nexec "%s" -E "%s" node "$@"\n'
               % (python, start.stdout.decode().strip()))
os.chmod(mark + ".new", 0o700)
os.rename(mark + ".new", mark)
with open(stamp, "w") as file:
    file.write(this)
print(json.dumps({"folder": target}))
"""


def payload() -> bytes:
    """The data sent to a host: a line of facts, then a compressed tar archive."""
    packed = _packed(required())
    facts = {
        "version": __version__,
        "venvs": VENVS,
        "platform": [list(sys.version_info[:2]), sysconfig.get_platform()],
        "bytes": len(packed),
    }
    return json.dumps(facts).encode() + b"\n" + packed


def install(host: str, python: str, data: bytes, limit_s: float = LIMIT_S) -> str:
    """Install ddptop on a host; returns the folder there.

    Args:
        host: as passed to ssh.
        python: the job's interpreter; if it does not exist there, python3 is used.
        data: the `payload`.
        limit_s: how long the installation may take.

    Raises:
        DdptopError: it failed; the message names the problem and the remedy.
    """
    script = shlex.quote(_INSTALL)
    wanted = shlex.quote(python)
    command = f"p={wanted}; test -x $p || p=python3; exec $p -c {script}"
    argv = (
        ["sh", "-c", command] if is_here(host) else ssh_argv(host, f"sh -c {shlex.quote(command)}")
    )
    status: int | None
    try:
        done = programs.run(argv, limit_s, data=data)
        status, out, text = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        status, out, text = None, str(late.stdout), str(late.stderr)
    except OSError as error:
        raise DdptopError(
            f"{host}: {argv[0]} cannot be run ({error.strerror})", "install the OpenSSH client"
        ) from None
    for line in reversed(out.splitlines()):
        with contextlib.suppress(ValueError):
            result = json.loads(line)
            if isinstance(result, dict) and "folder" in result:
                return one_line(str(result["folder"]))
            if isinstance(result, dict) and "problem" in result:
                problem, remedy = (
                    one_line(str(result["problem"])),
                    one_line(str(result.get("remedy"))),
                )
                raise DdptopError(f"{host}: {problem}", remedy)
    if status not in (None, FAILED) and "python3" in text and "not found" in text:
        raise DdptopError(f"{host}: no Python there", "install python3, or pass --python PATH")
    why = why_unreachable(host, status, text, limit_s)
    raise DdptopError(f"{host}: {why.problem}", why.remedy)


# --- what is sent ---


def required() -> dict[str, metadata.Distribution]:
    """Return ddptop and all that it requires, directly and indirectly, by name.

    Raises:
        DdptopError: a requirement is not installed.
    """
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement("ddptop")]
    seen = {str(waiting[0])}
    while waiting:
        wanted = waiting.pop()
        try:
            distribution = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            raise DdptopError(
                f"{wanted.name}, which ddptop requires, is not installed here", "reinstall ddptop"
            ) from None
        found[canonicalize_name(wanted.name)] = distribution
        for line in distribution.requires or ():
            needed = Requirement(line)
            marker = needed.marker
            extras = ("", *wanted.extras)
            is_needed = marker is None or any(marker.evaluate({"extra": one}) for one in extras)
            if is_needed and line not in seen:
                seen.add(line)
                waiting.append(needed)
    return found


def _packed(installed: dict[str, metadata.Distribution]) -> bytes:
    """An archive of all files, relative to site-packages; the same files give the same bytes."""
    files: dict[str, Path] = {}
    for distribution in installed.values():
        files |= {
            str(file): Path(str(distribution.locate_file(file)))
            for file in distribution.files or ()
        }
    for package in _PACKAGES:  # an editable installation does not list their files
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise DdptopError(f"the package {package} is not installed here", "install ddptop")
        folder = Path(spec.origin).parent
        files |= {str(path.relative_to(folder.parent)): path for path in folder.rglob("*")}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, path in sorted(files.items()):
            if name.startswith(("..", "/")) or "__pycache__" in name or name.endswith(".pth"):
                continue
            if not path.is_file():
                continue
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)
