"""Installs this version of ddptop on another machine, in its own environment.

The wheels of ddptop and its requirements are rebuilt from what is installed here, so the other
machine needs no checkout and, if it is of the same platform, no network. torch is not included:
jobs run under their own interpreter.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata as metadata
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.launch.ssh import FAILED, VENVS, is_here, ssh_argv, why_unreachable
from ddptop_runner.store.log_clean import one_line
from ddptop_runner.version import __version__

LIMIT_S = 300.0
MINIMUM_PYTHON = (3, 10)
_PACKAGES = ("ddptop", "ddptop_runner")
_LEFT_OUT = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})

_INSTALL = r"""
import hashlib, io, json, os, shutil, subprocess, sys, sysconfig, zipfile
def end(problem, remedy):
    print(json.dumps({"problem": problem, "remedy": remedy}))
    sys.exit(0)
facts = json.loads(sys.stdin.buffer.readline())
payload = sys.stdin.buffer.read()
if len(payload) != facts["bytes"]:
    end("only some of the files arrived", "try again")
found = sys.version_info[:2]
if found < tuple(facts["minimum"]):
    end("%s is Python %d.%d, too old for ddptop" % ((sys.executable,) + found),
        "pass --python PATH of a newer one there")
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
try:
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    if os.path.exists(mark):
        os.remove(mark)
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", target], check=True,
                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wheels = os.path.join(target, "wheels")
    zipfile.ZipFile(io.BytesIO(payload)).extractall(wheels)
except subprocess.CalledProcessError as error:
    output = error.stdout.decode(errors="replace").strip()[-300:]
    end("no environment in %s (%s)" % (target, output),
        "install python3-venv there, or pass --python PATH")
except OSError as error:
    end("%s cannot be written (%s)" % (target, error.strerror), "check the home there")
python = os.path.join(target, "bin", "python")
same = [list(found), sysconfig.get_platform()] == facts["platform"]
argv = [sys.executable, "-E", "-m", "pip", "--python", python, "install", "--quiet",
        "--disable-pip-version-check", "--no-input", "--find-links", wheels]
argv += ["--no-index"] if same and facts["complete"] else []
done = subprocess.run(argv + ["ddptop==" + facts["version"]], stdin=subprocess.DEVNULL,
                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
if done.returncode:
    lines = done.stdout.decode(errors="replace").strip().splitlines() or ["no output"]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    remedy = "check the network of that machine" if not same else "see the message"
    if b"No module named pip" in done.stdout:
        remedy = "install pip there, or pass --python PATH of one that has it"
    elif b"no such option: --python" in done.stdout:
        remedy = "upgrade pip there (22.3 or newer)"
    end("pip failed: " + errors[-1][:300], remedy)
shutil.rmtree(wheels, ignore_errors=True)
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


class Payload:
    """The data sent to a host: a line of facts, then the wheels."""

    def __init__(self) -> None:
        wheels, is_complete = all_wheels()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for name, data in wheels.items():
                archive.writestr(_entry(name), data)
        facts = {
            "version": _version(),
            "venvs": VENVS,
            "minimum": MINIMUM_PYTHON,
            "platform": [list(sys.version_info[:2]), sysconfig.get_platform()],
            "complete": is_complete,
            "bytes": len(packed.getvalue()),
        }
        self.data = json.dumps(facts).encode() + b"\n" + packed.getvalue()


def install(host: str, python: str, payload: Payload, limit_s: float = LIMIT_S) -> str:
    """Install ddptop on a host; returns the folder there.

    Args:
        host: as passed to ssh.
        python: the job's interpreter; if it does not exist there, python3 is used.
        payload: the data to send.
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
        done = programs.run(argv, limit_s, data=payload.data)
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


# --- wheels -------------------------------------------------------------------------------------


def all_wheels() -> tuple[dict[str, bytes], bool]:
    """(the wheels of ddptop and its requirements by file name, whether all were found)."""
    name, data = own_wheel()
    wheels, missing = {name: data}, False
    for distribution in _required():
        if distribution is None or (made := _wheel_of(distribution)) is None:
            missing = True
        else:
            wheels[made[0]] = made[1]
    return wheels, not missing


def own_wheel() -> tuple[str, bytes]:
    """(file name, content) of a wheel of this ddptop, whether installed or a checkout."""
    files: dict[str, bytes] = {}
    for package in _PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise DdptopError(f"the package {package} is not installed here", "install ddptop")
        folder = Path(found.origin).parent
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[str(path.relative_to(folder.parent))] = path.read_bytes()
    info = f"ddptop-{_version()}.dist-info"
    installed = metadata.distribution("ddptop")
    text = installed.read_text("METADATA") or ""
    files[f"{info}/METADATA"] = re.sub(
        r"(?m)^Version: .*$", f"Version: {_version()}", text, count=1
    ).encode()
    files[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: ddptop\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    return f"ddptop-{_version()}-py3-none-any.whl", _packed(files, info)


def _version() -> str:
    return __version__


def _required() -> Iterator[metadata.Distribution | None]:
    """Yield ddptop's requirements, direct and indirect; None for each that is not installed."""
    start = ("ddptop", "")
    waiting, seen, found = [start], {start}, {"ddptop"}
    while waiting:
        name, extra = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            yield None
            continue
        if name not in found:
            found.add(name)
            yield distribution
        for requirement in distribution.requires or ():
            for needed in needed_by(requirement, extra):
                if needed not in seen:
                    seen.add(needed)
                    waiting.append(needed)


def needed_by(requirement: str, extra: str) -> list[tuple[str, str]]:
    """(name, extra) of each package that a requirement needs under this Python.

    Only common markers are evaluated; any other counts as true.

    Args:
        requirement: as in a package's metadata.
        extra: the extra of that package being installed; "" for the package itself.
    """
    before, _, marker = requirement.partition(";")
    found = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?", before.strip())
    of_extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
    if found is None or (of_extra[1] if of_extra else "") != extra:
        return []
    older = re.search(r"""python_(?:full_)?version\s*<\s*['"](\d+)\.(\d+)""", marker)
    if older and sys.version_info[:2] >= (int(older[1]), int(older[2])):
        return []
    if re.search(
        r"""(sys_platform|platform_system|os_name)\s*==\s*['"](win|Win|nt|darwin)""", marker
    ):
        return []
    name = _normal(found[1])
    extras = [one.strip() for one in (found[2] or "").split(",") if one.strip()]
    return [(name, ""), *((name, one) for one in extras)]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wheel_of(distribution: metadata.Distribution) -> tuple[str, bytes] | None:
    """Rebuild the wheel that a package was installed from; None if files are missing."""
    wheel = distribution.read_text("WHEEL") or ""
    tag = re.search(r"(?m)^Tag: (\S+)$", wheel)
    name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"])
    files: dict[str, bytes] = {}
    info = None
    for file in distribution.files or ():
        path = str(file)
        if path.startswith(("..", "/")) or "__pycache__" in path or path.endswith(".pth"):
            continue
        head, _, rest = path.partition("/")
        if head.endswith(".dist-info"):
            info = head
            if rest in _LEFT_OUT:
                continue
        try:
            files[path] = Path(str(distribution.locate_file(file))).read_bytes()
        except OSError:
            return None
    if tag is None or info is None or len(files) < 3:
        return None
    return f"{name}-{distribution.version}-{tag[1]}.whl", _packed(files, info)


def _packed(files: Mapping[str, bytes], info: str) -> bytes:
    packed = io.BytesIO()
    record = []
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(_entry(name), data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{_quoted(name)},sha256={digest},{len(data)}\n")
        lines = "".join(record) + f"{info}/RECORD,,\n"
        archive.writestr(_entry(f"{info}/RECORD"), lines, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry without a timestamp, so that the same files make the same archive."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o600 << 16
    return entry


def _quoted(name: str) -> str:
    return f'"{name}"' if "," in name else name
