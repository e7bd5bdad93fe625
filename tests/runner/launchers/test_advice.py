"""Notes and questions before the ranks of a script start, and when they appear."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch import advice
from ddptop_runner.launch.advice import Advice, QuestionError, Script, advise, notes_on
from ddptop_runner.launch.request import LaunchRequest

MP = "import torch.multiprocessing as mp\n"
L = "import lightning as L\nL.Trainer({})\n"
DP = "import torch\nm = torch.nn.DataParallel(m)\n"
HVD = "import horovod.torch as hvd\nhvd.init()\n"
TF = "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n"
INIT = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
BY_HAND = "import torch.distributed as dist\ndist.init_process_group('gloo', rank=r)\n"
OPTION = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank')\n"
ACC = "from accelerate import Accelerator\na = Accelerator()\n"
PLAIN = "import torch\no = torch.optim.SGD(m.parameters())\n"


def request(**more: object) -> LaunchRequest:
    return LaunchRequest(**{"kind": "script", "target": "train.py", "args": ("--lr", "1"), **more})


def advised(
    folder: Path, text: str, ranks: int | None, devices: int, **more: object
) -> Advice | None:
    (folder / "train.py").write_text(text)
    return advise(request(**more), advice.read(request(), folder, {}), ranks, devices)


SPAWNS = "train.py starts its own ranks: mp.spawn (line 2)"
Case = tuple[str, int | None, int, str | None, tuple[str | None, int | None] | None, str]
CASES: dict[str, Case] = {
    # text, ranks, devices: "asks" or "note", the correct launcher and ranks, words
    "spawn": (
        f"{MP}mp.spawn(f)",
        *(4, 4, "asks", ("none", None), f"{SPAWNS}; each of the 4 ranks would start more"),
    ),
    "spawn, nobody knows how many": (
        f"{MP}mp.spawn(f)",
        *(None, 0, "asks", ("none", None), f"{SPAWNS}; each rank would start more"),
    ),
    "spawn, one rank": (f"{MP}mp.spawn(f)", 1, 1, "note", ("none", None), SPAWNS),
    "spawn under a condition": (
        f"{MP}if go:\n    mp.spawn(f)",
        *(2, 2, "asks", ("none", None), "mp.spawn (line 3)"),
    ),
    "spawn of ranks that join": (f"{MP}{BY_HAND}mp.spawn(f)", 2, 2, "asks", ("none", None), "mp."),
    "spawn, or ranks of a launcher": (f"{MP}{INIT}mp.spawn(f)", 2, 2, None, None, ""),
    "another launcher": (
        "import os\nos.system('torchrun t.py')",
        *(2, 2, "asks", ("none", None), "os.system (line 2)"),
    ),
    "DataParallel": (
        DP,
        *(4, 4, "asks", ("none", None)),
        "torch.nn.DataParallel (line 2); 4 ranks would each train independently on all 4 GPUs",
    ),
    "DataParallel, one rank": (DP, 1, 4, None, None, ""),
    "DataParallel of one device": (DP.replace("(m)", "(m, device_ids=[0])"), 2, 2, None, None, ""),
    "DataParallel, written for ranks": (f"{INIT}{DP}", 2, 2, None, None, ""),
    "DataParallel, or ranks by hand": (f"{BY_HAND}{DP}", 2, 2, None, None, ""),
    "DataParallel beside accelerate": (f"{ACC}{DP}", 2, 2, None, None, ""),
    "MirroredStrategy": (
        TF,
        *(2, 2, "asks", ("none", None)),
        "tf.distribute.MirroredStrategy (line 2); 2 ranks would each train independently",
    ),
    "MirroredStrategy, one rank": (TF, 1, 2, None, None, ""),
    "Horovod": (
        HVD,
        *(3, 4, "asks", ("horovod", 3)),
        "gets its rank from horovodrun: hvd.init (line 2); without it, 3 ranks would each train",
    ),
    "Horovod, one rank": (HVD, 1, 1, None, None, ""),
    "Horovod and TensorFlow": (f"import tensorflow\n{HVD}", 2, 2, "asks", ("horovod", 2), "run"),
    "Horovod, or ranks of a launcher": (f"{INIT}{HVD}", 2, 2, None, None, ""),
    "Lightning, as many": (L.format("devices=2, strategy='ddp'"), 2, 2, None, None, ""),
    "Lightning, all devices": (L.format("devices='auto'"), 2, 4, None, None, ""),
    "Lightning, fewer": (
        L.format("devices=2"),
        *(4, 4, "asks", (None, 2), "(line 2) expects 2 ranks; Lightning rejects 4 ranks"),
    ),
    "Lightning, a list": (L.format("devices=[0, 1]"), 4, 4, "asks", (None, 2), "expects 2 ranks"),
    "Lightning, more than there are": (
        L.format("devices=8"),
        *(4, 4, "asks", ("none", None), "expects 8 ranks"),
    ),
    "Lightning, more on CPUs": (L.format("devices=4"), 2, 0, "asks", (None, 4), "expects 4 ranks"),
    "Lightning, one device": (
        L.format("devices=1"),
        *(4, 4, "asks", ("none", None), "uses one device: 4 ranks would each train independently"),
    ),
    "Lightning, one of several": (
        L.format("devices=1, strategy='ddp'"),
        *(2, 2, "asks", (None, 1), "expects 1 rank; "),
    ),
    "Lightning, who knows": (L.format("devices=n"), 4, 4, None, None, ""),
    "Lightning, by the command line": (L.format("**more"), 4, 4, None, None, ""),
    "Lightning over hosts": (L.format("devices=2, num_nodes=2"), 4, 4, None, None, ""),
    "Lightning, one trainer of two": (L.format("devices=1") * 2, 2, 2, None, None, ""),
    "Lightning that spawns": (
        L.format("devices=2, strategy='ddp_spawn'"),
        *(2, 2, "asks", ("none", None), "L.Trainer (line 2) uses strategy ddp_spawn; under a"),
    ),
    "Lightning that forks": (
        L.format("strategy='ddp_notebook_find_unused_parameters_true'"),
        *(2, 2, "asks", ("none", None), "strategy ddp_notebook"),
    ),
    "Lightning, nobody knows how many": (L.format("devices=2"), None, 0, None, None, ""),
    "accelerate": (ACC, 2, 2, None, None, ""),
    "an option for the local rank": (
        f"{INIT}{OPTION}",
        *(2, 2, "note", None, "--local_rank, which torchrun no longer passes"),
    ),
    "DeepSpeed with an option": (
        f"import deepspeed\n{OPTION}deepspeed.initialize()",
        *(2, 2, "note", ("deepspeed", 2), "expects --local_rank"),
    ),
    "an option, and the variable": (
        f"import os\n{INIT}{OPTION}r = os.environ['LOCAL_RANK']",
        *(2, 2, None, None, ""),
    ),
    "torchrun's way": (f"{INIT}{PLAIN}", 2, 2, None, None, ""),
    "nothing of ranks": (PLAIN, 2, 2, None, None, ""),
    "nothing at all": ("", 2, 2, None, None, ""),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_is_said(tmp_path, case):
    text, ranks, devices, how, right, words = case
    found = advised(tmp_path, text, ranks, devices)
    assert (found and ("asks" if found.asks else "note")) == how
    if found is not None:
        assert words in found.problem
        assert (found.remedy and (found.remedy.launcher, found.remedy.nproc)) == right


@pytest.mark.parametrize("text", [f"{MP}mp.spawn(f)", DP, TF, HVD, L.format("devices=1")])
def test_one_process_is_always_right(tmp_path, text):
    assert advised(tmp_path, text, 1, 4, launcher="none") is None


def test_the_right_launcher_is_not_suggested_again(tmp_path):
    assert advised(tmp_path, HVD, 2, 2, launcher="horovod") is None
    assert advised(tmp_path, HVD, 2, 2, launcher="torchrun").remedy.launcher == "horovod"


def test_unknown_values_are_not_mentioned():
    assert advise(request(), Script(), 8, 8) is None


def notes(folder: Path, asked: LaunchRequest) -> list[str]:
    (folder / "train.py").write_text(f"{MP}mp.spawn(f)")
    return notes_on(asked, advice.read(asked, folder, {}), 2, 2)


def test_who_said_nothing_is_asked(tmp_path):
    with pytest.raises(QuestionError) as question:
        notes(tmp_path, request(gpus="0,1", name="a b"))
    said = str(question.value)
    right = "ddptop launch --gpus 0,1 --launcher none --name 'a b' train.py --lr 1"
    assert f"`{right}` runs it as one process" in said and "pass --nproc N to start N ranks" in said
    assert "\n" not in said and question.value.exit_code == 2
    assert (question.value.remedy.launcher, question.value.remedy.nproc) == ("none", None)
    assert notes(tmp_path, question.value.as_asked)[0].startswith("train.py starts its own ranks")


@pytest.mark.parametrize("more", [{"nproc": 2}, {"launcher": "torchrun"}, {"as_asked": True}])
def test_who_said_so_is_told_only(tmp_path, more):
    (note,) = notes(tmp_path, request(**more))
    assert "mp.spawn (line 2)" in note and "`ddptop launch --launcher none train.py --lr 1`" in note


def test_a_module_is_found_where_python_would(tmp_path):
    (tmp_path / "lib" / "pkg").mkdir(parents=True)
    (tmp_path / "lib" / "pkg" / "__main__.py").write_text(f"{MP}mp.spawn(f)")
    asked = request(kind="module", target="pkg")
    assert advice.read(asked, tmp_path, {"PYTHONPATH": "lib"}).of("spawn")
    assert advice.read(asked, tmp_path, {}) == Script()


def test_a_missing_torch_is_no_matter_to_tensorflow(tmp_path):
    (tmp_path / "train.py").write_text(TF)
    script = advice.read(request(), tmp_path, {})
    error = UsageError("there is no torch in /v/python", "activate")
    said = str(advice.explain_missing_torch(error, request(), script))
    assert "trains with tensorflow; `ddptop launch --launcher none train.py --lr 1` runs it" in said
    (tmp_path / "train.py").write_text(PLAIN)
    script = advice.read(request(), tmp_path, {})
    assert advice.explain_missing_torch(error, request(), script) is error


@pytest.mark.parametrize(
    ("arguments", "rich", "live"),
    [("", True, True), ("", False, False), ("enable_progress_bar=False", True, False)],
)
def test_a_bar_that_is_drawn_on_terminals_only(tmp_path, arguments, rich, live):
    (tmp_path / "train.py").write_text(L.format(arguments))
    package = tmp_path / "v" / "lib" / "python3.12" / "site-packages" / "rich"
    if rich:
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    script = advice.read(request(), tmp_path, {})
    assert advice.is_live_on_terminals_only(script, str(tmp_path / "v/bin/python")) is live


ROOT = Path(__file__).parents[3]
QUESTIONS = {
    "tests/frameworks/scripts/horovod_train.py": "gets its rank from horovodrun: hvd.init",
    "tests/frameworks/scripts/mirrored_train.py": "tf.distribute.MirroredStrategy",
    "tests/launched/scripts/parallel.py": "torch.nn.DataParallel",
    "tests/launched/scripts/printing_spawn.py": "starts its own ranks: mp.start_processes",
    "tests/launched/scripts/spawn.py": "starts its own ranks: mp.spawn",
    "tests/samples/progress_jobs.py": "lightning.Trainer(devices=2)",
}
"""Of all training scripts here, those that are wrong with four ranks, and why."""


def test_of_all_scripts_here_only_wrong_ones_are_questioned():
    scripts = [*ROOT.glob("tests/**/scripts/*.py"), *ROOT.glob("tests/samples/*.py")]
    scripts += [*ROOT.glob("tests/e2e/*.py"), *ROOT.glob("ddptop/demo/*.py")]
    found = {}
    for path in scripts:
        asked = request(target=path.name)
        said = advise(asked, advice.read(asked, path.parent, {}), 4, 4)
        if said is not None:
            found[str(path.relative_to(ROOT))] = said.problem
    assert len(scripts) > 40 and found.keys() == QUESTIONS.keys()
    assert all(QUESTIONS[name] in problem for name, problem in found.items())
