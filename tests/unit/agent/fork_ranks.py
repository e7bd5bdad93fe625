"""Acts as an agent: starts or forks a rank for each order on stdin, and prints how it exited."""

import os
import sys

LOADED_FIRST, FIRST_PATH = set(sys.modules), list(sys.path)

import importlib.util  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
from pathlib import Path  # noqa: E402

agent_folder, command = sys.argv[1], json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location(
    "ddptop_agent",
    Path(agent_folder, "__init__.py"),
    submodule_search_locations=[agent_folder],
)
sys.modules["ddptop_agent"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["ddptop_agent"])
from ddptop_agent import zygote as zygotes  # noqa: E402

SHELL = ["/bin/sh", "-c", 'exec "$@" >>"$DDPTOP_LOG" 2>&1', "ddptop-rank"]


def say(**words):
    print(json.dumps(words), flush=True)


zygote, why_not = zygotes.start(command, LOADED_FIRST, FIRST_PATH)
say(why_not=why_not, zygote=zygote and zygote.pid)
for line in sys.stdin:
    order = json.loads(line)
    env = {**os.environ, **order["env"], "AGENT": str(os.getpid())}
    argv, probe = command[2:] + order["more"], order["probe"]
    if order["usual"]:
        rank = subprocess.Popen(
            [*SHELL, *command[:2], *argv], env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
    else:
        count = order.get("together", 1)
        envs = [env] if count == 1 else [{**env, "RANK": str(rank)} for rank in range(count)]
        orders = [{"argv": argv, "env": env, "log": env["DDPTOP_LOG"]} for env in envs]
        ranks = zygote.fork_ranks(orders, probe)
        rank = ranks and ranks[0]
    if rank is None:
        say(why_not=zygote.why_not)
    else:
        if "signal" in order:
            while "ready" not in Path(env["DDPTOP_LOG"]).read_text():
                pass
            rank.send_signal(order["signal"])
        codes = [each.wait(120) for each in ([rank] if order["usual"] else ranks)]
        say(pid=rank.pid, code=codes[0], codes=codes)
