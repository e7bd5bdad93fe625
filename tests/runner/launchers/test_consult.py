"""Who is asked about a script, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.launchers import consult
from ddptop_runner.launch.request import LaunchRequest

MP = "import torch.multiprocessing as mp\n"
TF = "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n"
L = "import lightning as L\nL.Trainer({})\n"
PLAIN = "import torch\no = torch.optim.SGD(m.parameters())\n"


def request(**more: object) -> LaunchRequest:
    return LaunchRequest(**{"kind": "script", "target": "train.py", "args": ("--lr", "1"), **more})


def consulted(folder: Path, asked: LaunchRequest, ranks: int | None = 2) -> list[str]:
    (folder / "train.py").write_text(f"{MP}mp.spawn(f)")
    facts = consult.read(asked, folder, {}, ranks, 2)
    return consult.notes_on(asked, facts, {}, ranks, 2)


def test_who_said_nothing_is_asked(tmp_path):
    with pytest.raises(consult.QuestionError) as question:
        consulted(tmp_path, request(gpus="0,1", name="a b"))
    said = str(question.value)
    right = "ddptop launch --gpus 0,1 --launcher none --name 'a b' train.py --lr 1"
    assert f"`{right}` runs it as one process" in said and "pass --nproc N to start N ranks" in said
    assert "\n" not in said and question.value.exit_code == 2
    assert (question.value.remedy.launcher, question.value.remedy.nproc) == ("none", None)
    assert consulted(tmp_path, question.value.as_asked)[0].startswith(
        "train.py starts its own ranks"
    )


@pytest.mark.parametrize("more", [{"nproc": 2}, {"launcher": "torchrun"}, {"as_asked": True}])
def test_who_said_so_is_told_only(tmp_path, more):
    (note,) = consulted(tmp_path, request(**more))
    assert "mp.spawn (line 2)" in note and "`ddptop launch --launcher none train.py --lr 1`" in note


def test_a_module_is_found_where_python_would(tmp_path):
    (tmp_path / "lib" / "pkg").mkdir(parents=True)
    (tmp_path / "lib" / "pkg" / "__main__.py").write_text(f"{MP}mp.spawn(f)")
    asked = request(kind="module", target="pkg")
    env = {"PYTHONPATH": "lib"}
    assert consult.read(asked, tmp_path, env, 2, 0).first("spawn") is not None
    assert not consult.read(asked, tmp_path, {}, 2, 0).known


def test_a_missing_torch_is_no_matter_to_tensorflow(tmp_path):
    (tmp_path / "train.py").write_text(TF)
    facts = consult.read(request(), tmp_path, {}, 2, 0)
    error = UsageError("there is no torch in /v/python", "activate")
    said = str(consult.explain_missing_torch(error, request(), facts))
    assert "trains with tensorflow; `ddptop launch --launcher none train.py --lr 1` runs it" in said
    (tmp_path / "train.py").write_text(PLAIN)
    facts = consult.read(request(), tmp_path, {}, 2, 0)
    assert consult.explain_missing_torch(error, request(), facts) is error


@pytest.mark.parametrize(
    ("told", "rich", "live"),
    [("", True, True), ("", False, False), ("enable_progress_bar=False", True, False)],
)
def test_a_bar_that_is_drawn_on_terminals_only(tmp_path, told, rich, live):
    (tmp_path / "train.py").write_text(L.format(told))
    package = tmp_path / "v" / "lib" / "python3.12" / "site-packages" / "rich"
    if rich:
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    facts = consult.read(request(), tmp_path, {}, 1, 0)
    assert consult.is_live_on_terminals_only(facts, str(tmp_path / "v/bin/python")) is live
