"""The probe in real trainings: what it says is what the script prints."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.probe_ranks import Rank, lines

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.probe.hooks import ARGUMENTS, Hooks
from ddptop_runner.probe.recorder import Recorder

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def cases(module_rank: Rank) -> dict[str, tuple[dict[str, Any], list[ProbeMessage]]]:
    """{case: (what the script says, what its process sent)}, all from one import of torch."""
    # newer versions warn of forks, and torch 2.8 of its own LBFGS
    status, out, err = module_rank.run("-W", "ignore", str(SCRIPTS / "cases.py"))
    assert (status, err) == (0, "")
    said = {str(line["case"]): line for line in lines(out)}
    messages = module_rank.receiver.messages
    speakers = {line["pid"] for line in said.values()} | {said["parent"]["pid"]}
    assert {message.pid for message in messages} <= speakers, "a data loader's worker spoke"
    return {
        name: (line, [m for m in messages if m.pid == line["pid"]]) for name, line in said.items()
    }


def last_of(cases: Any, name: str) -> tuple[dict[str, Any], ProbeMessage]:
    said, messages = cases[name]
    assert messages and messages[-1].final, f"{name}: no last message"
    assert all(message.rank == 3 and message.attempt == 2 for message in messages)
    assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
    return said, messages[-1]


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "subclass", "tuple", "accumulate_mean", "accumulate_sum", "accumulate_scaled"),
        *("scaler", "scaler_skips", "gan", "lbfgs", "in_backward", "two_hooks", "checkpointing"),
        *("data_loader", "compiled", "sharpness_aware", "accelerate", "accelerate_sum"),
        *("accelerate_cut_short", "trainer", "lightning", "deepspeed", "deepspeed_fp16"),
        *("deepspeed_fp16_one_pass", "deepspeed_own_optimizer", "deepspeed_before_division"),
        "apex",
    ],
)
def test_steps_and_losses_are_those_of_the_script(cases, name):
    said, last = last_of(cases, name)
    losses = said["losses"]
    assert last.steps == said["steps"]
    assert last.loss == pytest.approx(losses[-1], rel=1e-6, abs=1e-9)
    assert (last.loss_state, last.loss_source, last.loss_step) == ("ok", "probe", last.steps)
    assert last.loss_n == len(losses)
    assert last.loss_sum == pytest.approx(sum(losses), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "parts", "kind"),
    [
        *(("plain", 1, None), ("accumulate_mean", 3, "mean"), ("accumulate_sum", 3, "sum")),
        *(("accumulate_scaled", 4, "sum"), ("gan", 2, "mean"), ("lbfgs", 1, None)),
        *(("in_backward", 1, None), ("accelerate", 1, None), ("accelerate_sum", 3, "sum")),
        *(("accelerate_cut_short", 2, "sum"), ("trainer", 2, "sum"), ("lightning", 2, "sum")),
        ("deepspeed_fp16", 2, "sum"),
    ],
)
def test_what_a_loss_is_made_of_is_told(cases, name, parts, kind):
    last = last_of(cases, name)[1]
    assert (last.loss_parts, last.loss_is) == (parts, kind)


def test_optimizers_with_their_own_losses_are_reported_separately(cases):
    said, last = last_of(cases, "gan")
    assert last.optimizers["SGD 1"] == [5, pytest.approx(said["losses"][-1], rel=1e-6)]
    assert last.optimizers["SGD 2"] == [5, pytest.approx(said["others"], rel=1e-6)]
    assert len(last.optimizers) == 2
    for name in ("plain", "in_backward", "two_hooks", "lbfgs", "deepspeed"):
        assert last_of(cases, name)[1].optimizers == {}


@pytest.mark.parametrize(
    ("name", "tells"),
    [
        ("plain", (None, None, None, None, None)),
        ("accelerate", (None, None, None, None, None)),
        ("trainer", (103, 103, "trainer", 4.75, 5)),
        ("lightning", (6, 16, "trainer", 2.0, 4)),
    ],
)
def test_trainers_tell_their_progress(cases, name, tells):
    last = last_of(cases, name)[1]
    told = (last.global_step, last.total_steps, last.total_source, last.epoch, last.epochs)
    assert told == tells


@pytest.mark.parametrize(
    ("name", "imported"),
    [
        ("plain", []),
        ("trainer", ["accelerate", "transformers"]),
        ("deepspeed", ["deepspeed"]),
        ("apex", ["apex"]),
        ("lightning", ["lightning"]),
    ],
)
def test_imported_frameworks_are_named(cases, name, imported):
    assert last_of(cases, name)[1].frameworks == imported


def test_lowest_and_highest_loss_are_those_of_all_messages(cases):
    said, messages = cases["plain"]
    lows = [message.loss_min for message in messages if message.loss_min is not None]
    highs = [message.loss_max for message in messages if message.loss_max is not None]
    assert min(lows) == pytest.approx(min(said["losses"]), rel=1e-6)
    assert max(highs) == pytest.approx(max(said["losses"]), rel=1e-6)


@pytest.mark.parametrize(
    "name", ["non_scalar", "arithmetic_after_scaling", "dispatch_mode", "own_dispatch"]
)
def test_a_loss_that_cannot_be_read_is_unknown(cases, name):
    said, last = last_of(cases, name)
    assert last.steps == said["steps"]
    assert (last.loss, last.loss_state, last.loss_step, last.loss_n) == (None, None, None, 0)


@pytest.mark.parametrize("state", ["nan", "inf"])
def test_a_loss_that_is_no_number_is_a_state(cases, state):
    said, last = last_of(cases, state)
    assert (last.loss, last.loss_state, last.loss_step) == (None, state, said["steps"])
    assert last.loss_n == said["steps"] - 1 and math.isfinite(last.loss_sum or 0.0)


def test_the_scripts_own_report_wins(cases):
    said, last = last_of(cases, "report")
    assert last.loss == pytest.approx(said["losses"][-1], rel=1e-6)
    assert (last.loss_source, last.steps, last.global_step) == ("api", said["steps"], 104)
    assert last.total_steps == 1000
    assert last.metrics == {"accuracy": 0.5, "lr": pytest.approx(0.01), "norm": None}


def test_waiting_for_data_is_measured_without_evaluation(cases):
    said, last = last_of(cases, "data_loader")
    assert last.data_wait_s is not None and last.step_time_s is not None
    # a batch of two items, each of which takes `wait_s` to load; evaluation's take five times that
    assert said["wait_s"] * 2 * 0.9 <= last.data_wait_s <= said["longest_wait_s"]
    assert last.data_wait_s <= last.step_time_s


@pytest.mark.parametrize(
    "name", ["plain", "accumulate_mean", "scaler", "gan", "lbfgs", "checkpointing", "data_loader"]
)
def test_passes_and_optimizers_are_parts_of_the_step(cases, name):
    last = last_of(cases, name)[1]
    parts = (last.forward_s, last.backward_s, last.optimizer_s)
    assert all(part is not None and part > 0 for part in parts), parts
    assert sum(part or 0 for part in parts) <= (last.step_time_s or 0) * 1.001


def test_group_member_reports_before_its_first_step(cases):
    assert last_of(cases, "joined")[1].steps is None


# --- unseen by the script --------------------------------------------------------------------


def test_a_training_prints_draws_and_ends_as_without_the_probe(rank):
    script = str(SCRIPTS / "unseen.py")
    processes = [rank.start(script, has_probe=has) for has in (True, False)]
    (out, err), (plain_out, plain_err) = (p.communicate(timeout=600) for p in processes)
    assert out == plain_out and err == plain_err and "random" in out
    assert [p.returncode for p in processes] == [7, 7]
    last = rank.receiver.last(processes[0].pid)
    assert last.steps == 8 and last.loss == pytest.approx(lines(out)[-1]["loss"], rel=1e-6)


# --- several processes -----------------------------------------------------------------------


def test_ranks_of_mp_spawn_know_their_rank_from_inside(rank):
    # as in a job of one process: the parent is rank 0, its children have only inherited that
    rank.env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    status, out, err = rank.run(str(SCRIPTS / "spawned.py"))
    assert status == 1 and "rank 1 fails" in err
    said = lines(out)
    assert sorted(line["rank"] for line in said) == [0, 1]
    assert {m.pid for m in rank.receiver.messages if m.steps} == {line["pid"] for line in said}
    for line in said:
        last = rank.receiver.last(line["pid"])
        assert (last.rank, last.world_size, last.steps) == (line["rank"], 2, 6)
        assert last.loss == pytest.approx(line["losses"][-1], rel=1e-6)
    number = (SCRIPTS / "spawned.py").read_text().split("raise ValueError")[0].count("\n") + 1
    raised = {
        m.rank: [m.raised, m.raised_at] for m in rank.receiver.messages if m.final and m.steps
    }
    where = f"spawned.py:{number} in train"
    assert raised == {0: [None, None], 1: ["ValueError: rank 1 fails", where]}


def test_news_come_while_the_next_step_is_slow(rank, wait_until):
    process = rank.start(str(SCRIPTS / "slow_step.py"))
    assert process.stdout is not None
    loss = float(process.stdout.readline())
    wait_until(lambda: any(m.loss_step == 3 for m in rank.receiver.messages), what="the third loss")
    assert rank.receiver.messages[-1].steps == 3
    assert rank.receiver.messages[-1].loss == pytest.approx(loss, rel=1e-6)
    process.communicate("\n")


def test_a_backward_pass_of_another_torch_is_seen_as_well():
    torch = pytest.importorskip("torch")
    assert tuple(inspect.signature(torch.autograd.backward).parameters) == ARGUMENTS
    record, given = Recorder(), []

    def original(*args: Any, **kwargs: Any) -> str:
        given.append((args, kwargs))
        return "done"

    backward = Hooks(torch, record)._wrap_backward(original)
    loss = torch.ones((), requires_grad=True) * 2
    assert backward(loss, None, added=1) == backward(tensors=loss) == "done"
    assert given == [((loss, None), {"added": 1}), ((), {"tensors": loss})]
    assert record.pending_losses == [2.0, 2.0]
