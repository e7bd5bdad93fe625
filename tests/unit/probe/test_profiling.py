"""Profiling steps of a live rank: the training is the same, and each order gets an answer."""

from __future__ import annotations

import json

import pytest
from tests.support.probe_ranks import Rank

pytestmark = pytest.mark.torch

TRAINS = """
import json, os, sys, time, torch

folder, is_rank = sys.argv[1], "RANK" in os.environ

def train(number):
    torch.manual_seed(number)
    layers = torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if is_rank:
        order = {"id": number, "steps": 3, "from_step": 5, "until_t": 1e9}
        with open(folder + "/part", "w") as file:
            json.dump(order, file)
        os.rename(folder + "/part", folder + "/order-rank-3.json")
    answers = [f"{folder}/{number}-rank-3.{kind}" for kind in ("json", "error")]
    steps = 0
    while steps < 40 or is_rank and steps < 2000 and not any(map(os.path.exists, answers)):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps <= 40:
            print(loss.item().hex())
        time.sleep(0.02)

train(1)
schedule, torch.profiler.schedule = torch.profiler.schedule, None
train(2)
torch.profiler.schedule = schedule
own = torch.profiler.profile()
train(3)
"""


def test_each_order_is_answered_and_the_losses_are_the_same(rank: Rank) -> None:
    folder = rank.folder / "profiles"
    folder.mkdir()
    rank.env["DDPTOP_STACKS_DIR"] = str(rank.folder / "evidence" / "stacks")
    script = rank.write("trains.py", TRAINS)
    status, out, err = rank.run(script, str(folder))
    assert status == 0, err
    of_torch = ("USDT", "DeviceProperties.cpp")  # the latter where its CUDA build has no driver
    assert [line for line in err.splitlines() if not any(one in line for one in of_torch)] == []
    trace, *refused = sorted(folder.iterdir())
    assert {path.name: path.read_text() for path in refused} == {
        "2-rank-3.error": "torch.profiler failed: 'NoneType' object is not callable",
        "3-rank-3.error": "the script uses torch.profiler itself",
    }
    events = json.loads(trace.read_text())["traceEvents"]
    steps = {one["name"] for one in events if one["name"].startswith("ProfilerStep")}
    assert len(steps) == 3 and "aten::addmm" in {one["name"] for one in events}
    del rank.env["RANK"]
    assert rank.run(script, str(folder), has_probe=False)[1] == out
