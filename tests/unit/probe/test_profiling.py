"""Profiling steps of a live rank: the training is the same, and each order gets an answer."""

from __future__ import annotations

import json

import pytest
from tests.support.probe_ranks import Rank

pytestmark = pytest.mark.torch

TRAINS = """
import os, sys, time, torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
own = torch.profiler.profile() if sys.argv[1] == "own" else None
if sys.argv[1] == "broken":
    torch.profiler.schedule = None
answers = [os.path.join(sys.argv[2], "7-rank-3." + kind) for kind in ("json", "error")]
steps = 0
is_rank = "RANK" in os.environ
while steps < 40 or is_rank and steps < 2000 and not any(map(os.path.exists, answers)):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    if steps <= 40:
        print(loss.item().hex())
    time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("case", "answer"),
    [
        ("plain", None),
        ("own", "the script uses torch.profiler itself"),
        ("broken", "torch.profiler failed: 'NoneType' object is not callable"),
    ],
)
def test_an_order_is_answered_and_the_losses_are_the_same(
    rank: Rank, case: str, answer: str | None
) -> None:
    folder = rank.folder / "profiles"
    folder.mkdir()
    rank.env["DDPTOP_STACKS_DIR"] = str(rank.folder / "evidence" / "stacks")
    order = folder / "order-rank-3.json"
    order.write_text(json.dumps({"id": 7, "steps": 3, "from_step": 5, "until_t": 1e9}))
    script = rank.write("trains.py", TRAINS)
    status, out, err = rank.run(script, case, str(folder))
    assert status == 0 and not order.exists(), err
    assert [line for line in err.splitlines() if not line.startswith("USDT")] == []
    [found] = [path for path in folder.iterdir() if path.suffix != ".part"]
    if answer is not None:
        assert (found.name, found.read_text()) == ("7-rank-3.error", answer)
    else:
        events = json.loads(found.read_text())["traceEvents"]
        steps = {one["name"] for one in events if one["name"].startswith("ProfilerStep")}
        assert len(steps) == 3 and "aten::addmm" in {one["name"] for one in events}
    del rank.env["RANK"]
    assert rank.run(script, case, str(folder), has_probe=False)[1] == out
