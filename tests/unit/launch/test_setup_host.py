"""The wheels that `setup-host` sends, rebuilt from the local installation."""

from __future__ import annotations

import hashlib
import importlib.metadata as metadata
import io
import json
import subprocess
import sys
import tarfile

import pytest

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.host import procs
from ddptop_runner.launch import setup_host
from ddptop_runner.version import __version__


@pytest.fixture(scope="module")
def payload() -> bytes:
    """Compressing it takes seconds."""
    return setup_host.payload()


def test_ddptop_and_its_requirements_are_sent(payload):
    _, _, packed = payload.partition(b"\n")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = set(archive.getnames())
        version = archive.extractfile("ddptop_runner/version.py").read().decode()
    assert {"ddptop/__main__.py", "click/__init__.py", "textual/app.py"} <= names
    assert __version__ in version
    assert not any("__pycache__" in name or name.startswith("torch/") for name in names)


def test_a_package_that_ddptop_requires_must_be_installed(monkeypatch):
    real = metadata.distribution

    def without_click(name):
        if name == "click":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", without_click)
    with pytest.raises(DdptopError, match="click, which ddptop requires, is not installed here"):
        setup_host.required()


def test_it_is_installed_and_starts(payload, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = setup_host.install(procs.host_name(), sys.executable, payload)
    assert folder == str(tmp_path / setup_host.VENVS / __version__)
    hello = subprocess.run([f"{folder}/ddptop-node"], input=b"", capture_output=True, timeout=60)
    assert json.loads(hello.stdout.splitlines()[0])["ddptop"] == __version__


def test_a_host_with_another_python_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(setup_host.sysconfig, "get_platform", lambda: "linux-other")
    monkeypatch.setattr(setup_host, "required", dict)
    other = setup_host.payload()
    with pytest.raises(DdptopError, match="not the same version and platform as the one here"):
        setup_host.install(procs.host_name(), sys.executable, other)


def test_what_is_installed_already_is_left_alone(payload, tmp_path, monkeypatch):
    """Jobs may be running from it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert payload == setup_host.payload()
    facts, _, wheels = payload.partition(b"\n")
    target = tmp_path / setup_host.VENVS / json.loads(facts)["version"]
    target.mkdir(parents=True)
    node = target / "ddptop-node"
    node.write_text("#!/bin/sh")
    node.chmod(0o700)
    stamp = f"{hashlib.sha256(wheels).hexdigest()} {sys.executable}"
    (target / "installed").write_text(stamp)
    here = procs.host_name()
    assert setup_host.install(here, sys.executable, payload) == str(target)
    assert node.read_text() == "#!/bin/sh"
