"""Twenty jobs of two users on four simulated GPUs, while waiting guardians are killed."""

from __future__ import annotations

import contextlib
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
KILLS = 5
FIRST = 4
SCRIPT = """
cd {log}; me={name}
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do
  mkdir held-$gpu || touch twice-$me-$gpu
done
echo $me >> started
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
    for name in ("started", "ended"):
        (log / name).touch()
        (log / name).chmod(0o666)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def environment(user: Account, stub: StubDriver, place: Path) -> dict[str, str]:
    return stub.env(user.environment(), log=False) | {
        "LD_LIBRARY_PATH": str(place / "driver"),
        "DDPTOP_STUB_NVML_STATE": str(place / "state"),
        "DDPTOP_HOME": str(user.home / "state"),
        "DDPTOP_QUEUE_DIR": str(place / "queue"),
        "DDPTOP_TMUX_SOCKET": user.name,
        "OMP_NUM_THREADS": "1",
    }


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def guardians_of_waiting(user: Account) -> list[int]:
    files = (user.home / "state" / "runs").glob("*/nodes/*.json")
    nodes = [json.loads(file.read_text()) for file in files]
    return [node["guardian"]["pid"] for node in nodes if node["state"] == "queued"]


@pytest.mark.parametrize("seed", range(int(os.environ.get("DDPTOP_TEST_ROUNDS", "1"))))
def test_two_users_share_four_gpus(attacker, victim, make_stub, place, seed):
    stub = make_stub(GPUS)
    for index in range(GPUS):
        stub.set(index, mem_used=0, processes=[])
    shutil.copytree(stub.library.parent, place / "driver")
    shutil.copy(stub.state_file, place / "state")
    for path in (place / "state", place / "driver", *(place / "driver").iterdir()):
        path.chmod(0o755)
    chance, log, users = random.Random(seed), place / "log", (attacker, victim)

    def ddptop(user: Account, *args: str) -> str:
        answer = user.ddptop(*args, env=environment(user, stub, place), timeout=120)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    for number, user in itertools.product(range(JOBS), users):
        name, count = f"{user.name}-{number}", chance.choice([1, 1, 2, 4])
        script = SCRIPT.format(log=log, name=name, seconds=chance.choice([2, 4]))
        options = ["--wait-gpus", "--gpus", f"auto:{count}", "--name", name]
        ddptop(user, "launch", "-d", *options, "--", "sh", "-c", script)
    killed, deadline_s = 0, time.monotonic() + 300
    while len(lines(log / "ended")) < 2 * JOBS and time.monotonic() < deadline_s:
        time.sleep(3)
        waiting = guardians_of_waiting(chance.choice(users))
        if waiting and killed < KILLS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(waiting), signal.SIGKILL)
                killed += 1
    started = lines(log / "started")
    assert list(log.glob("twice-*")) == []
    assert len(lines(log / "ended")) == 2 * JOBS, [ddptop(user, "queue") for user in users]
    assert killed == KILLS
    assert len(set(started)) == 2 * JOBS
    for user in users:
        own = [line for line in started if line.startswith(user.name)]
        assert own == sorted(own, key=lambda line: int(line.rpartition("-")[2])), started
    # each user's next job after one of the other, or two if a killed guardian was being replaced;
    # the first ones started while all GPUs were free, and at the end only one user has jobs
    owners = [line.rpartition("-")[0] for line in started]
    while owners[-1] == owners[-2]:
        owners.pop()
    assert max(len(list(same)) for _, same in itertools.groupby(owners[FIRST:])) <= 3, started
