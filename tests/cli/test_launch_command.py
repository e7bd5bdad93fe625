"""`ddptop launch -- COMMAND` and `--launcher`: what is refused, and what would run."""

from __future__ import annotations

import sys

import pytest
from ddptop.__main__ import main

LAUNCH = ["launch", "-d", "--nproc", "1"]
BAD = {
    # (exit status, arguments, words in the line: the problem and the remedy)
    "ranks of a command": (
        2,
        [*LAUNCH, "--", "torchrun", "x"],
        ["--nproc 1 does not apply to commands", "--nproc-per-node N to torchrun"],
    ),
    "ranks of any program": (2, [*LAUNCH, "--", "./x"], ["start their own ranks; remove it"]),
    "no command": (2, ["launch", "--"], ["-- requires a command", "launch -- torchrun"]),
    "no such program": (2, ["launch", "--", "nosuch-x"], ["no program nosuch-x on PATH"]),
    "a variable": (2, ["launch", "--", "A=b c", "x"], ["no program A=b c on", "-- env 'A=b c' "]),
    "one word of all": (2, ["launch", "--", "python x.py"], ["remove the quotes: -- python x.py"]),
    "a shell's own": (
        2,
        ["launch", "--", "source", "x"],
        ["no program source on", "bash -c 'source"],
    ),
    "a late option": (2, ["launch", "--", "--gpus", "0", "x"], ["--gpus on PATH", "before --"]),
    "no program there": (2, ["launch", "--", "./nosuch"], ["no program ./nosuch in /", "path"]),
    "a folder as a program": (2, ["launch", "--", "./folder.py"], ["./folder.py is a directory"]),
    "a script as a program": (
        2,
        ["launch", "--", "./train.py"],
        ["./train.py is not executable", "-- python ./train.py"],
    ),
    "a text without an interpreter": (
        2,
        ["launch", "--", "./plain"],
        ["./plain has no #! line", "-- sh ./plain"],
    ),
    "a text whose interpreter is gone": (
        2,
        ["launch", "--", "./gone"],
        ["./gone starts with #!/no/such, which does not exist", "first line"],
    ),
    "a script from stdin": (
        2,
        ["launch", "--", sys.executable, "-"],
        ["reads its script from stdin", " SCRIPT"],
    ),
    "a script as a program's name": (
        2,
        ["launch", "--", "train.py"],
        ["no program train.py on PATH", "-- python train.py"],
    ),
    "a Python that misses its script": (
        2,
        ["launch", "--", sys.executable, "none.py"],
        ["no script none.py in /"],
    ),
    "an interpreter for a command": (
        2,
        ["launch", "--python", "/p", "--", "true"],
        ["--python /p does not apply to commands", "-- /p SCRIPT"],
    ),
    "a smaller command": (
        2,
        ["launch", "--allow-shrink", "--", "true"],
        ["--allow-shrink requires ranks that ddptop starts", "SCRIPT"],
    ),
    "a launcher for a command": (
        2,
        ["launch", "--launcher", "mpi", "--", "true"],
        ["--launcher mpi does not apply to commands, which name their own launcher", "remove it"],
    ),
    "an unknown launcher": (2, ["launch", "--launcher", "x", "train.py"], ["'x'", "accelerate"]),
    "a launcher that is not installed": (
        2,
        [*LAUNCH, "--python", sys.executable, "--launcher", "horovod", "train.py"],
        ["horovodrun not found next to ", "pip install horovod there"],
    ),
    "a launcher of nobody knows how many": (
        2,
        ["launch", "--launcher", "torchrun", "train.py"],
        ["the number of ranks is unknown", "--nproc N"],
    ),
    "several of one process": (
        2,
        ["launch", "--nproc", "2", "--launcher", "none", "train.py"],
        ["--launcher none starts one process", "remove --nproc"],
    ),
    "a smaller launcher": (
        2,
        [*LAUNCH, "--allow-shrink", "--launcher", "none", "train.py"],
        ["--launcher none starts its own", "SCRIPT"],
    ),
    "no script for a launcher": (
        2,
        [*LAUNCH, "--launcher", "torchrun", "none.py"],
        ["no script none.py"],
    ),
    "a terminal for ranks": (2, [*LAUNCH, "--pty", "train.py"], ["--pty works only with commands"]),
}


@pytest.mark.torch
@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_what_a_command_cannot_have(bad_input, case, tmp_path):
    status, arguments, words = case
    for name, text in (("plain", "echo no"), ("gone", "#!/no/such -x\necho no")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    line = bad_input(status, *arguments)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        (["--", sys.executable, "train.py", "--x", "a b"], f"{sys.executable} train.py --x 'a b'"),
        (["--launcher", "none", "train.py", "--x"], f"{sys.executable} -u train.py --x"),
        (["--launcher", "none", "-m", "train"], f"{sys.executable} -u -m train"),
    ],
)
def test_a_dry_run_of_a_command(bad_input, tmp_path, monkeypatch, capfd, arguments, argv):
    monkeypatch.setattr(sys, "argv", ["ddptop", "launch", "--dry-run", *arguments])
    assert main() == 0
    shown = dict(line.split(":", 1) for line in capfd.readouterr().out.splitlines())
    said = {name: value.strip() for name, value in shown.items()}
    assert (said["argv"], said["program"], said["job"]) == (argv, sys.executable, "train")
    assert said["ranks"] == "set by the command" and said["output"] == "its log"
    assert "RANK" not in said["each process"] and said["sets"] == "DDPTOP_JOB_ID"
