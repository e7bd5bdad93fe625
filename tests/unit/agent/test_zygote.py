"""A forked rank behaves like one that was started without forking."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.programs import captured, piped

from ddptop_runner.agent.zygote import is_standard_only
from ddptop_runner.host import procs
from ddptop_runner.host.handover import AGENT_MAIN, PROBE_DIR

pytestmark = pytest.mark.torch

SELF_PORTRAIT = """
import atexit, gc, json, multiprocessing, os, pickle, random, signal, sys, tempfile, threading, time
class Mine: pass
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(9)]
def told(): print("at exit", [os.path.samestat(os.fstat(x), os.stat(os.devnull)) for x in opened])
atexit.register(told)
how = sys.argv[-1]
spawned = None
if how in ("spawn", "fork", "forkserver") and __name__ == "__main__":
    context = multiprocessing.get_context(how)
    process = context.Process(target=print, args=("of a child",))
    process.start()
    process.join()
    spawned = process.exitcode
def of_torch():
    import numpy, torch
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    return {
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "cuda": [torch.cuda.is_available(), torch.cuda.is_initialized()],
        "matmul": torch.mm(torch.ones(64, 64), torch.ones(64, 64)).sum().item(),
        "file": torch.__file__, "spec": str(torch.__spec__.origin), "path": list(torch.__path__),
        "numpy": numpy.__file__, "loader": type(torch.__loader__).__name__,
        "compiler": "torch._dynamo" in sys.modules, "group": torch.distributed.is_initialized(),
        "step": optimizer.step(),
    }
if __name__ == "__main__":
    main = sys.modules["__main__"]
    def of_kernel(name):
        return open("/proc/self/" + name, "rb").read().decode("latin1").split("\\0")
    not_ours = ("_", "SHLVL", "OLDPWD", "PWD", "DDPTOP_LOG", "DDPTOP_PROBE_OWNER")
    of_remote_modules = tempfile.gettempdir() + "/tmp"  # torch 2.6 adds a folder for its RPC
    portrait = {
        "argv": sys.argv, "name": __name__, "file": __file__,
        "path": [x for x in sys.path if not x.startswith(of_remote_modules)],
        "is_main": main.__dict__ is globals(), "package": __package__,
        "spec": getattr(__spec__, "name", None), "loader": type(__loader__).__name__,
        "builtins": __builtins__ is sys.modules["builtins"], "spawned": spawned,
        "pickled": pickle.loads(pickle.dumps(Mine)) is Mine, "cwd": os.getcwd(),
        "isatty": sys.stdin.isatty(), "stdin": sys.stdin.read(),
        "threads": threading.active_count(), "native": threading.get_native_id() == os.getpid(),
        "encoding": sys.stdout.encoding, "write_through": sys.stdout.write_through,
        "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
        "env": {k: v for k, v in os.environ.items() if k not in not_ours},
        "probe": "_ddptop_probe" in sys.modules, "ppid": os.getppid() == int(os.environ["AGENT"]),
        "cmdline": of_kernel("cmdline"), "orig": sys.orig_argv,
        "environ": sorted(x for x in of_kernel("environ") if x and x.split("=")[0] not in not_ours),
        "open": len(os.listdir("/proc/self/fd")), "umask": os.umask(0o22),
        "hidden": [x for x in ("torch", "numpy", "sympy", "ddptop_agent") if x in sys.modules],
        "collects": [gc.isenabled(), gc.get_threshold()],
        "flags": str(sys.flags), "warnings": sys.warnoptions, "executable": sys.executable,
        "blocked": [int(x) for x in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "handlers": [str(signal.getsignal(x)).split(" at ")[0] for x in range(1, 32)],
        "limits": open("/proc/self/limits").read(), "file_of_main": getattr(main, "__file__", None),
        "torch": of_torch() if how == "torch" else None,
    }
    print(json.dumps(portrait, sort_keys=True))
    if how == "raise":
        raise ValueError("on purpose")
    if how == "exit":
        sys.exit(7)
    if how == "interrupt":
        print("ready")
        while True:
            time.sleep(0.1)
"""
HOWS = ["plain", "spawn", "fork", "forkserver", "raise", "exit", "interrupt", "torch"]


class Agent:
    """A process that starts and forks ranks of one script."""

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.process = piped(
            *(sys.executable, "-u", str(Path(__file__).with_name("fork_ranks.py"))),
            *(str(AGENT_MAIN.parent), json.dumps([sys.executable, "-u", *argv])),
            cwd=cwd,
            env=env,
        )
        self.env = env
        self.started = self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        read: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        return read

    def rank(self, log: Path, *more: str, usual: bool = False, **of_order: Any) -> dict[str, Any]:
        path = os.pathsep.join(filter(None, [str(PROBE_DIR), self.env.get("PYTHONPATH")]))
        env = {"PYTHONPATH": path, "DDPTOP_JOB_ID": "forked@1", "RANK": "1"}
        env |= {"DDPTOP_PROBE_SOCK": str(log.with_name("none")), "DDPTOP_LOG": str(log)}
        env |= of_order.pop("env", {})
        order = {"more": more, "env": env, "usual": usual, **of_order}
        log.write_text("from before\n")
        order["probe"] = str(PROBE_DIR / "sitecustomize.py")
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._read()

    def both(self, folder: Path, *more: str, **of_order: Any) -> list[str]:
        """The output of a started rank and of a forked one; their exit statuses must be equal."""
        logs = folder / "usual.log", folder / "forked.log"
        ended = [self.rank(log, *more, usual=log is logs[0], **of_order)["code"] for log in logs]
        said = [log.read_text().replace(str(log), "LOG") for log in logs]
        assert ended[0] == ended[1], said[0][-700:]
        return said


@contextlib.contextmanager
def agent_for(argv: list[str], cwd: Path, **variables: str) -> Iterator[Agent]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDPTOP_")} | variables
    agent = Agent(argv, cwd, env)
    try:
        yield agent
    finally:
        agent.process.communicate()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "pkg"
    folder.mkdir()
    (folder / "train.py").write_text(SELF_PORTRAIT)
    # without the word that makes torch's compiler be preloaded
    (folder / "shown.py").write_text(SELF_PORTRAIT.replace("optim", "o"))
    (folder / "__init__.py").write_text("")
    return folder.parent


@pytest.fixture(scope="module")
def agent(package: Path) -> Iterator[Agent]:
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(package / "theirs")}
    with agent_for(["pkg/train.py", "--lr", "ü \udcff"], package, **variables) as running:
        assert running.started["why_not"] is None
        yield running


@pytest.fixture(scope="module")
def small(package: Path) -> Iterator[Agent]:
    """Its ranks run the file that they are given; it has torch, but not torch's compiler."""
    (package / "small.py").write_text("import sys  # torch\nexec(open(sys.argv[1]).read())\n")
    with agent_for(["small.py"], package, OMP_NUM_THREADS="1") as running:
        yield running


@pytest.fixture
def run(small: Agent, tmp_path: Path) -> Callable[..., tuple[str, dict[str, Any]]]:
    """`run(text)`: what a forked rank that runs it prints, and the agent's answer."""

    def fork(text: str, **of_order: Any) -> tuple[str, dict[str, Any]]:
        (tmp_path / "text.py").write_text(text)
        answer = small.rank(tmp_path / "log", str(tmp_path / "text.py"), **of_order)
        return (tmp_path / "log").read_text().removeprefix("from before\n"), answer

    return fork


def portrait(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(x for x in text.splitlines() if x[:1] == "{"))
    return found


@pytest.mark.parametrize("how", HOWS)
def test_forked_rank_behaves_like_a_started_one(agent, tmp_path, how):
    of_order = {"signal": int(signal.SIGINT)} if how == "interrupt" else {}
    usual, forked = agent.both(tmp_path, how, **of_order)
    assert portrait(forked) == portrait(usual)
    assert forked == usual
    assert portrait(usual)["probe"] and portrait(usual)["ppid"] and not portrait(usual)["hidden"]


def test_module_is_forked_too_until_the_zygote_dies(package, tmp_path):
    with agent_for(["-m", "pkg.shown"], package) as agent:
        usual, forked = agent.both(tmp_path, "plain")
        os.kill(agent.started["zygote"], signal.SIGKILL)
        assert "it does not answer" in agent.rank(tmp_path / "log", "plain")["why_not"]
    assert portrait(forked) == portrait(usual)
    assert forked == usual


def test_ranks_are_not_forked_if_python_always_opens_a_file():
    """Each rank would close it again, whatever has its number by then."""
    code = """
import os, sys
from ddptop_runner.agent import zygote
kept = os.open(os.devnull, os.O_RDONLY)
print(zygote.start([sys.executable, "-u", "-m", "torch"], set(), []))
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "(None, 'files are opened whenever Python starts')\n"


def test_variables_that_torch_reads_at_import_take_effect(run):
    printed, answer = run(
        "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n"
        "print(torch.get_num_threads(), os.getpid())"
    )
    assert printed == f"2 {answer['pid']}\n"
    assert run("", env={"MKL_NUM_THREADS": "1"})[1] == {"why_not": None}


RESULTS = Path(__file__).with_name("same_results.py")
RECIPES = re.findall(r"^def (\w+)\(\):", RESULTS.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results_agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    """Its libraries start threads when they are imported, unless the number of threads is 1."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("OMP_NUM_THREADS", raising=False)
        chosen = {} if request.param == "unset" else {"OMP_NUM_THREADS": request.param}
        with agent_for([str(RESULTS)], RESULTS.parent, **chosen) as running:
            assert running.started["why_not"] is None
            yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("results_agent", "recipes"),
    [("1", RECIPES), ("2", ["threads"]), ("unset", ["threads"])],
    indirect=["results_agent"],
    ids=["all", "two threads", "usual threads"],
)
def test_a_forked_rank_computes_the_same_bits(results_agent, tmp_path, recipes):
    usual, forked = results_agent.both(tmp_path, *recipes)
    assert forked == usual
    assert len(usual.split()) > 4 * len(recipes) - 1 and "Traceback" not in usual


def test_a_process_that_the_script_forks_never_restarts_as_the_rank(run):
    printed, _ = run(
        "import os\nprint('once', flush=True)\nif os.fork() == 0:\n"
        "    os.environ['OMP_NUM_THREADS'] = '7'\n    import torch\n    os._exit(0)\n"
        "print(os.wait()[1])"
    )
    assert printed == "once\n0\n"


def test_ranks_are_not_forked_if_python_always_imports_torch(package, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import torch")
    (theirs / "torch.py").touch()
    with agent_for(["pkg/train.py"], package, PYTHONPATH=str(theirs)) as agent:
        assert agent.started == {
            "why_not": "torch is imported whenever Python starts",
            "zygote": None,
        }


LIBRARIES_SET = {  # before they import numpy and torch, as of Lightning 2.6 and scikit-learn 1.9
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "KMP_DUPLICATE_LIB_OK": "True",
    "KMP_INIT_AT_FORK": "FALSE",
}


def test_a_variable_that_lightning_or_scikit_learn_sets_does_not_restart_the_rank(run):
    text = f"import os; os.environ.update({LIBRARIES_SET}); print('once'); import torch"
    assert run(text)[0] == "once\n"


PRINT_COMPILER = "import sys, torch; print('torch._dynamo' in sys.modules)"

STANDARD_ONLY = {
    "import os, sys.path\nprint('hi')": True,
    "": True,
    "from concurrent import futures": True,
    "import ddptop, os": True,
    "import torch": False,
    "def f():\n    import numpy": False,
    "from . import model": False,
    "import mine": False,
    "import importlib\nimportlib.import_module('tor' + 'ch')": False,
    "exec(open('train_torch.py').read())": False,
    "print 'hi'": False,
}


@pytest.mark.parametrize("text", STANDARD_ONLY)
def test_a_script_that_imports_only_the_standard_library_needs_no_zygote(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert is_standard_only([str(script), "--lr", "1"]) is STANDARD_ONLY[text]
    (tmp_path / "os.py").write_text("import torch")
    (tmp_path / "concurrent").mkdir()
    (tmp_path / "concurrent" / "__init__.py").write_text("import torch")
    assert is_standard_only([str(script)]) is (text == "")


def test_torchs_compiler_is_preloaded_for_a_script_whose_training_is_elsewhere(
    package, run, tmp_path, wait_until
):
    assert run(PRINT_COMPILER)[0] == "False\n"
    (package / "engine.py").write_text(PRINT_COMPILER)
    (package / "main.py").write_text("import engine")
    with agent_for(["main.py"], package) as agent:
        agent.rank(tmp_path / "log")
        assert (tmp_path / "log").read_text() == "from before\nTrue\n"
        zygote = procs.identify(agent.started["zygote"])
        agent.process.kill()
        wait_until(lambda: not procs.is_alive(zygote), what="the zygote to exit with its agent")


def test_without_a_need_for_torch_no_zygote_is_started(package):
    (package / "bare.py").write_text("import os")
    for argv in (["bare.py"], ["-m", "bare"]):
        with agent_for(argv, package) as agent:
            assert agent.started == {"why_not": None, "zygote": None}


def test_random_numbers_differ_between_ranks(run):
    text = (
        "import numpy, random, torch, uuid\n"
        "print(numpy.random.rand(), random.random(), uuid.uuid4(), torch.rand(1).item())"
    )
    mine, theirs = (run(text)[0].split() for _ in range(2))
    assert len(mine) == 4 and not set(mine) & set(theirs)


def test_module_next_to_the_script_shadows_torchs_import(package, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "queue.py").write_text("mine = True")
    (folder / "train.py").write_text("import torch")
    with agent_for(["train.py"], folder) as agent:
        answer = agent.rank(tmp_path / "log")
    assert answer == {"why_not": f"queue in {folder} hides a module that torch imports"}


LATE = """
import json, os, signal, socket, sys
from ddptop_runner.agent import zygote
zygote.preload, zygote.be_rank = lambda *_: None, lambda *_: None
zygote.adopt(True)
ours, its = socket.socketpair()
pid = os.fork()
if pid == 0:
    ours.close()
    zygote.serve(its, ["python", "-u", "train.py"], set(), [])
    open("ran-%d" % os.getpid(), "w").close()
    os._exit(0)
its.close()
lines = ours.makefile("rb")
lines.readline()
ours.sendall(json.dumps({"ranks": [{"argv": []}] * 3, "probe": None}).encode() + zygote.GO)
ranks = json.loads(lines.readline())["pids"]
if sys.argv[1] == "wanted":
    ours.sendall(zygote.GO)
else:
    os.kill(pid, signal.SIGKILL)
print(*(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks))
if sys.argv[1] == "wanted":
    ours.shutdown(socket.SHUT_RDWR)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(("how", "status", "ran"), [("wanted", "0 0 0", 3), ("late", "1 1 1", 0)])
def test_ranks_that_the_agent_stopped_waiting_for_never_run_the_script(tmp_path, how, status, ran):
    env = dict(os.environ, PYTHONPATH=str(PROBE_DIR.parents[2]))
    ended = subprocess.run(
        [sys.executable, "-c", LATE, how],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
        text=True,
    )
    assert (ended.stdout.strip(), len(list(tmp_path.glob("ran-*")))) == (status, ran)


GONE = """
import errno, os, select, signal, socket, sys, time
from ddptop_runner.agent import zygote
agent, when = os.getpid(), sys.argv[1]
def die_before_it_knows_the_rank():
    while os.getppid() != agent:
        time.sleep(0.001)
    its_end = os.pidfd_open(its_pid)
    os.kill(its_pid, signal.SIGKILL)
    select.select([its_end], [], [])
    print("gone\\n", end="", flush=True)
def give_up(self, why):
    self.why_not = why
    os.kill(pid, signal.SIGKILL)
def dumps(answer):
    if "pids" in answer:
        os.kill(its_pid, signal.SIGKILL)
    return loaded_dumps(answer)
def fork():
    if os.getpid() == its_pid:
        return loaded_fork()
    forks.append(None)
    if len(forks) == 2:
        raise OSError(errno.EAGAIN, "no more processes")
    return loaded_fork()
loaded_dumps, loaded_fork, forks = zygote.json.dumps, os.fork, []
zygote.preload, zygote.be_rank = lambda *_: None, lambda *_: None
ours, its = socket.socketpair()
pid = os.fork()
if pid == 0:
    ours.close()
    its_pid = os.getpid()
    if when == "it dies before the rank is one":
        os.setsid = die_before_it_knows_the_rank
    elif when == "it dies before it names the rank":
        zygote.json.dumps = dumps
    elif when == "it cannot fork the second rank":
        os.fork = fork
    zygote.serve(its, ["python", "-u", "train.py"], set(), [])
    print("ran")
    os._exit(0)
its.close()
zygote.Zygote.give_up = give_up  # without a wait for it, which is waited for below
if when == "another process adopts the rank":
    zygote.adopt = lambda wanted: None
agent_side = zygote.Zygote(pid, ours, ["python", "-u"], dict(os.environ))
order = {"argv": ["train.py"], "env": dict(os.environ), "log": "log"}
orders = [order] * (2 if "second" in when else 1)
ranks = agent_side.fork_ranks(orders, None)
print(f"{ranks} {agent_side.why_not}\\n", end="", flush=True)
ended = {}
try:
    while True:  # the rank, the zygote, and perhaps the process between them
        ended.update([os.wait()])
except ChildProcessError:
    print(ended.pop(pid), *{os.waitstatus_to_exitcode(status) for status in ended.values()} - {0})
"""


GAVE_UP = {
    "it dies before the rank is one": "it does not answer (it has exited)",
    "it dies before it names the rank": "it does not answer (it has exited)",
    "it cannot fork the second rank": "it cannot fork",
    "another process adopts the rank": "the kernel does not make its ranks the agent's children",
}


@pytest.mark.parametrize("when", GAVE_UP)
def test_zygote_that_fails_while_forking_leaves_no_rank(tmp_path, when):
    ended = captured(
        *[sys.executable, "-c", GONE, when],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(PROBE_DIR.parents[2])),
        timeout=60,
    )
    assert ended.stderr == ""  # it would appear in the log of the rank that is started instead
    assert set(ended.stdout.splitlines()) == {
        f"None {GAVE_UP[when]}",
        f"{int(signal.SIGKILL)}{'' if when.startswith('another') else ' 1'}",
        *(["gone"] if when == "it dies before the rank is one" else []),
    }


def test_ranks_are_forked_together(small, run):
    text = "import os\nos.write(1, f\"{os.environ['RANK']} {os.getppid()}\\n\".encode())"
    printed, answer = run(text, together=5)
    assert sorted(printed.splitlines()) == [f"{rank} {small.process.pid}" for rank in range(5)]
    assert answer["codes"] == [0] * 5
