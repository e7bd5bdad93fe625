"""The wheels that `setup-host` sends, rebuilt from the local installation."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import sys
import zipfile

import pytest

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.host import procs
from ddptop_runner.launch import setup_host
from ddptop_runner.version import __version__


def test_the_wheel_of_this_ddptop_is_whole():
    name, data = setup_host.own_wheel()
    assert name == f"ddptop-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        names = wheel.namelist()
        record = list(csv.reader(wheel.read(names[-1]).decode().splitlines()))
        assert {row[0] for row in record} == set(names)
        for path, digest, size in record[:-1]:
            content = wheel.read(path)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            assert (digest, size) == (f"sha256={expected.decode()}", str(len(content)))
        metadata = wheel.read(f"ddptop-{__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert {"ddptop/__main__.py", "ddptop_runner/base/start.py"} <= set(names)
    assert not any("__pycache__" in path for path in names)


def test_all_that_ddptop_requires_goes_along():
    wheels, is_complete = setup_host.all_wheels()
    assert is_complete
    names = {name.partition("-")[0].lower() for name in wheels}
    assert {"ddptop", "click", "msgspec", "rich", "textual"} <= names
    assert "torch" not in names


@pytest.mark.parametrize(
    ("requirement", "extra", "needed"),
    [
        ("click>=8.1", "", [("click", "")]),
        (
            "Markdown_It.py[linkify]>=2.1",
            "",
            [("markdown-it-py", ""), ("markdown-it-py", "linkify")],
        ),
        ("torch>=2.6; extra == 'torch'", "", []),
        ('linkify-it-py<3; extra == "linkify"', "linkify", [("linkify-it-py", "")]),
        ("tomli>=2; python_version < '3.0'", "", []),
        ("tomli>=2; python_version < '3.99'", "", [("tomli", "")]),
        ("colorama; sys_platform == 'win32'", "", []),
        ("colorama; platform_system == 'Windows'", "", []),
        ("", "", []),
    ],
)
def test_of_requirements_only_those_of_this_python_count(requirement, extra, needed):
    assert setup_host.needed_by(requirement, extra) == needed


def test_the_script_for_the_host_runs_on_old_pythons():
    compile(setup_host._INSTALL, "install", "exec")
    assert "f'" not in setup_host._INSTALL
    assert sys.version_info >= setup_host.MINIMUM_PYTHON


def test_what_is_installed_already_is_left_alone(tmp_path, monkeypatch):
    """Jobs may be running from it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    payload = setup_host.Payload()
    assert payload.data == setup_host.Payload().data
    facts, _, wheels = payload.data.partition(b"\n")
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


def test_what_another_machine_says_is_one_short_line(tmp_path, monkeypatch):
    ssh = tmp_path / "ssh"
    ssh.write_text("""#!/bin/sh
cat >/dev/null
python3 -c 'import json; print(json.dumps({"problem": "\\x1b]0;x\\n" + "y" * 99999, "remedy": 1}))'
""")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(DdptopError) as caught:
        setup_host.install("elsewhere", sys.executable, setup_host.Payload())
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
