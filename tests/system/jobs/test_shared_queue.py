"""Twenty jobs of two users on four simulated GPUs, while waiting guardians are killed."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.accounts import Account, attacker, victim
from tests.support.nvml_stub import StubDriver

__all__ = ["attacker", "victim"]
pytestmark = pytest.mark.tmux

GPUS = 4
JOBS = 10
SCRIPT = """
cd {log}; me=$USER-{name}
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do
  mkdir held-$gpu || touch twice-$me-$gpu
done
echo $me $CUDA_VISIBLE_DEVICES >> started
sleep {seconds}
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do rmdir held-$gpu; done
echo $me >> ended
"""
"""Takes a folder for each of its GPUs, as memory on them would be seen."""


@pytest.fixture
def place(make_stub: Callable[..., StubDriver]) -> Iterator[Path]:
    """A folder for the driver, the queue, and the log, open to both users."""
    folder = Path(tempfile.mkdtemp(prefix="ddptop-two-", dir="/tmp"))
    folder.chmod(0o777)
    log = folder / "log"
    log.mkdir()
    log.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def environment(user: Account, stub: StubDriver, place: Path) -> dict[str, str]:
    variables = stub.env(user.environment(), log=False) | {
        "LD_LIBRARY_PATH": str(place / "driver"),
        "DDPTOP_STUB_NVML_STATE": str(place / "state"),
        "DDPTOP_HOME": str(user.home / "state"),
        "DDPTOP_QUEUE_DIR": str(place / "queue"),
        "DDPTOP_TMUX_SOCKET": user.name,
        "OMP_NUM_THREADS": "1",
    }
    return variables


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize("seed", range(int(os.environ.get("DDPTOP_TEST_ROUNDS", "1"))))
def test_two_users_share_four_gpus(attacker, victim, make_stub, place, seed, wait_until):
    stub = make_stub(GPUS)
    shutil.copytree(stub.library.parent, place / "driver")
    shutil.copy(stub.state_file, place / "state")
    for path in (place / "state", *(place / "driver").rglob("*")):
        path.chmod(0o755)
    chance, log = random.Random(seed), place / "log"
    users = (attacker, victim)
    env = {user.name: environment(user, stub, place) for user in users}

    def ddptop(user: Account, *args: str) -> str:
        answer = user.ddptop(*args, env=env[user.name], timeout=120)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    for number, user in itertools.product(range(JOBS), users):
        name, count = f"j{number}", chance.choice([1, 1, 2, 4])
        script = SCRIPT.format(log=log, name=name, seconds=chance.choice([2, 4]))
        wants = ("--gpus", f"auto:{count}")
        ddptop(
            user, "launch", "-d", "--wait-gpus", "--name", name, *wants, "--", "sh", "-c", script
        )
    killed = 0
    deadline_s = time.monotonic() + 400
    while len(lines(log / "ended")) < 2 * JOBS and time.monotonic() < deadline_s:
        time.sleep(3)
        user = chance.choice(users)
        nodes = list((user.home / "state" / "runs").glob("*/nodes/*.json"))
        waits = [
            node for file in nodes if (node := json.loads(file.read_text()))["state"] == "queued"
        ]
        if waits and killed < 6:
            killed += 1
            os.kill(chance.choice(waits)["guardian"]["pid"], signal.SIGKILL)
    started = [line.split()[0] for line in lines(log / "started")]
    assert list(log.glob("twice-*")) == []
    assert len(lines(log / "ended")) == 2 * JOBS, [ddptop(user, "ls") for user in users]
    assert len(set(started)) == 2 * JOBS
    for user in users:
        own = [
            line.removeprefix(f"{user.name}-j") for line in started if line.startswith(user.name)
        ]
        assert own == sorted(own, key=int), started
    # a user waits for at most one job of the other, unless their jobs want different GPUs
    runs = [
        len(list(same))
        for _, same in itertools.groupby(started[2:], lambda one: one.rpartition("-")[0])
    ]
    assert max(runs) <= 3, started
