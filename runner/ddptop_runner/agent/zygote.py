"""A process with torch imported that forks ranks, so that a rank starts in milliseconds.

The agent imports torch while it has a single thread and forks the zygote. For the ranks of an
attempt, it sends one JSON line. The zygote forks a process that forks all of them and exits: the
kernel then gives the ranks to the agent, which is a subreaper for that moment, so that they are the
agent's children like ones that were started normally. Each rank waits until the agent knows all of
them, and only then prepares itself and runs its script. The zygote holds no file, socket, or store
of an attempt. Without a zygote, or if it fails, ranks start normally.

In a rank, preloaded modules stay hidden until the script imports them. If the script changes a
variable that torch reads when loaded (OMP_NUM_THREADS, PYTORCH_CUDA_ALLOC_CONF), or its CPU
affinity, before it imports torch, the rank restarts normally in the same process.

A forked rank differs from a normally started one: all ranks share Python's hash seed, and standard
library modules that torch imports are loaded before the script's first line.
"""

import ast
import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import mmap
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from typing import Any

READY_S = 120.0
"""How long imports may take; from a slow network disk, they take a minute."""
FORK_S = 60.0
"""How long forking may take, in addition to `FORK_RANK_S` for each rank."""
FORK_RANK_S = 1.0
GO = b"\n"
"""The message for which a rank waits before its script: the agent has adopted all of them."""
SCRIPT_BYTES = 1 << 20

LOADED_WITH_TORCH = re.compile(
    r"(OMP|GOMP|KMP(?!_INIT_AT_FORK|_DUPLICATE_LIB_OK)|MKL|OPENBLAS|BLIS|NPY|NUMPY|NUMEXPR|DNNL"
    r"|ONEDNN|PYTORCH(?!_NVML_BASED_CUDA_CHECK)|ATEN|TRITON"
    r"|TORCH(?!ELASTIC|_NCCL|_FR_|_DISABLE_SHARE|_HOME$))"
)
"""Variables that torch, numpy, or their libraries read when loaded.

Not those that scikit-learn and Lightning set before they import numpy and torch.
"""
NEEDS_COMPILER = re.compile(rb"\boptim\b|DistributedDataParallel")
"""What in torch imports its compiler, which takes as long as torch itself."""
NEEDS_NO_COMPILER = {"torch", "numpy"}
"""Packages that do not; any other may hold the training loop or import it."""

STANDARD_FDS = 4
"""Standard input, output, and error, and that of the listing itself. Another one would be closed in
each rank when its Python object is, whatever has its number by then."""

PR_SET_CHILD_SUBREAPER = 36
PR_SET_MM = 35
PR_SET_MM_MAP = 14


# -- the agent's side --------------------------------------------------------------------------


class ForkedRank(subprocess.Popen):
    """A child of this process that another process forked, with the interface of `Popen`."""

    def __init__(self, pid, args):
        self.args, self.pid, self.returncode = args, pid, None
        self.stdin = self.stdout = self.stderr = None
        self.encoding = self.errors = self.text_mode = self.pipesize = None
        self._input, self._communication_started = None, False
        self._child_created, self._closed_child_pipe_fds = True, True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25

    def wait(self, timeout=None):
        """Like `Popen.wait`, which with a timeout only polls every 50 ms."""
        if timeout is not None and self.returncode is None and hasattr(os, "pidfd_open"):
            began_s = time.monotonic()
            with contextlib.suppress(OSError), open(os.pidfd_open(self.pid)) as end:
                poll = select.poll()
                poll.register(end, select.POLLIN)
                poll.poll(max(0.0, timeout) * 1000)
            timeout -= time.monotonic() - began_s
        return super().wait(timeout)


class Zygote:
    """The agent's side of the zygote.

    Args:
        pid: the zygote's.
        channel: a socket connected to it.
        interpreter: the job's, as called: `python -u`.
        loaded_env: the variables with which torch was imported.
    """

    def __init__(self, pid, channel, interpreter, loaded_env):
        self.pid = pid
        self._channel = channel
        self._lines = channel.makefile("rb")
        self._interpreter = interpreter
        self._loaded_env = loaded_env
        self._is_ready = False
        self.why_not = None
        """Why it does not fork ranks, once known."""

    def fork_ranks(self, orders, probe):
        """Fork all ranks or none.

        Args:
            orders: for each rank, `argv` (`script ARGS` or `-m module ARGS`), `env` with all of its
                variables, and `log`, the file to which its output is appended.
            probe: the probe's sitecustomize.py; None without a probe.

        Returns:
            Their process handles, or None if they have to be started normally.
        """
        if self.why_not is not None or any(differs(self._loaded_env, x["env"]) for x in orders):
            return None
        adopt(True)
        try:
            if not self._is_ready:
                self._ask(None, READY_S)
                self._is_ready = True
            limit_s = FORK_S + FORK_RANK_S * len(orders)
            pids = self._ask({"ranks": orders, "probe": probe}, limit_s)["pids"]
            for pid in pids:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._channel.sendall(GO)
        except ChildProcessError:
            self.give_up("the kernel does not make its ranks the agent's children")
            return None
        except (OSError, ValueError) as error:
            self.give_up("it does not answer (%s)" % (error,))
            return None
        except RuntimeError as error:
            self.give_up(str(error))
            return None
        finally:
            adopt(False)
        return [
            ForkedRank(pid, [*self._interpreter, *order["argv"]])
            for pid, order in zip(pids, orders)
        ]

    def _ask(self, order, timeout_s):
        self._channel.settimeout(timeout_s)
        if order is not None:
            self._channel.sendall(json.dumps(order).encode("ascii") + b"\n")
        answer = json.loads(self._lines.readline() or b"null")
        if answer is None:
            raise OSError("it has exited")
        if answer.get("why_not"):
            raise RuntimeError(answer["why_not"])
        return answer

    def give_up(self, why):
        """Stop using the zygote; ranks start normally from now on."""
        self.why_not = why
        self._channel.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except OSError:
            pass  # already gone


def adopt(wanted):
    """Set whether orphans among this process's descendants become its children."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def differs(before, now):
    """Whether a variable differs that torch reads when loaded."""
    names = filter(LOADED_WITH_TORCH.match, {*before, *now})
    return any(before.get(name) != now.get(name) for name in names)


def start(command, before, path):
    """Import torch and fork the zygote. In a forked rank, run its script and exit.

    Args:
        command: the ranks' command: `python -u script ARGS` or `python -u -m module ARGS`.
        before: the modules that the interpreter had loaded before the agent's first line.
        path: the interpreter's initial sys.path.

    Returns:
        (a Zygote, None), or (None, the reason); (None, None) if forking would gain nothing.
    """
    if is_standard_only(command[2:]):
        return None, None
    if sys.version_info < (3, 10):
        return None, "Python is older than 3.10"
    if "torch" in before:
        return None, "torch is imported whenever Python starts"
    if len(os.listdir("/proc/self/fd")) > STANDARD_FDS:
        return None, "files are opened whenever Python starts"
    loaded_env = dict(os.environ)
    why_not = import_torch()
    if why_not is not None:
        return None, why_not
    agent_end, zygote_end = socket.socketpair()
    pid = os.fork()
    if pid:
        zygote_end.close()
        zygote = Zygote(pid, agent_end, command[:2], loaded_env)
        if len(os.listdir("/proc/self/task")) > 1:
            zygote.give_up("torch starts threads when it is imported")
            return None, zygote.why_not
        return zygote, None
    agent_end.close()
    try:
        argv = serve(zygote_end, command, before, path)
    except ConnectionError:  # the agent is gone, and has said why
        os._exit(1)
    except BaseException as error:
        sys.stderr.write("ddptop: the zygote failed: %r\n" % (error,))
        sys.stderr.flush()
        os._exit(1)
    run_script(argv)
    sys.exit(0)


def import_torch():
    """Import what every rank and the agent need; returns why no rank can be forked, or None."""
    try:
        import torch.distributed
        import torch.nn.parallel  # noqa: F401
    except Exception as error:  # the rank itself reports it better
        return "torch cannot be imported (%s)" % (error,)
    return "importing torch initializes CUDA" if holds_device() else None


# -- the zygote --------------------------------------------------------------------------------


def serve(channel, command, before, path):
    """Fork ranks for each line. Returns only in a rank, with its argv; never in the zygote.

    Args:
        channel: the socket to the agent.
        command: the ranks' command.
        before: the modules that a new interpreter has loaded.
        path: a rank's sys.path, except for its script's folder.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    only_open(channel.fileno())
    why_not = preload(command, before)
    preloaded = hide_modules(before)
    gc.freeze()  # otherwise, collections in ranks would copy all of it
    channel.sendall(json.dumps({"why_not": why_not}).encode("ascii") + b"\n")
    lines = channel.makefile("rb")
    for line in lines:
        orders = json.loads(line)
        wanted, go = os.pipe()
        reported, report = os.pipe()
        middle = os.fork()
        if middle == 0:
            only_open(wanted, report)
            channel.detach()  # else, at exit, it closes whatever has its number by then
            importlib.invalidate_caches()
            sys.path[:] = path
            order = fork_each(orders["ranks"], report)
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(report)
            if os.read(wanted, len(GO)) != GO:  # the agent starts another, or the zygote is gone
                os._exit(1)
            os.close(wanted)
            be_rank(order, [*command[:2], *order["argv"]], preloaded, orders["probe"])
            return order["argv"]
        os.close(wanted)
        os.close(report)
        with open(reported, "rb") as reader:
            pids = reader.read()  # until the process in between and all ranks have closed it
        os.waitpid(middle, 0)
        answer = {"pids": json.loads(pids)} if pids else {"why_not": "it cannot fork"}
        channel.sendall(json.dumps(answer).encode("ascii") + b"\n")
        if pids and lines.readline() == GO:
            with contextlib.suppress(OSError):  # all of them have been killed
                os.write(go, GO * len(orders["ranks"]))
        os.close(go)
    os._exit(0)


def fork_each(orders, report):
    """Fork a rank for each order, write all pids, and exit. Returns only in a rank: its order."""
    pids = []
    try:
        for order in orders:
            pid = os.fork()
            if pid == 0:
                return order
            pids.append(pid)
        os.write(report, json.dumps(pids).encode("ascii"))
    except OSError:
        os._exit(1)
    os._exit(0)


def only_open(*kept):
    """Close all files except the standard ones and these."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.close(number)


def preload(command, before):
    """Import more than torch if the script needs it; returns why forking is impossible, or None."""
    argv = command[2:]
    try:
        text = script_text(argv)
        if NEEDS_COMPILER.search(text) or imported(argv, text) - NEEDS_NO_COMPILER:
            import torch._dynamo  # noqa: F401
    except Exception:
        pass  # the module is elsewhere, or torch lacks it: each rank imports it
    for folder in [
        first_folder(argv),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]:
        for name in sorted(importable_in(folder) & (set(sys.modules) - before)):
            loaded = getattr(sys.modules[name], "__file__", None)
            if loaded and not os.path.abspath(loaded).startswith(os.path.abspath(folder) + os.sep):
                return "%s in %s hides a module that torch imports" % (name, folder)
    if holds_device() or len(os.listdir("/proc/self/task")) > 1:
        return "torch's compiler initializes CUDA or starts threads when it is imported"
    try:
        set_command_line(command, os.environ)
    except (OSError, ValueError) as error:
        return "this system cannot show a forked rank's command line (%s)" % (error,)
    return None


def holds_device():
    """Whether a GPU driver is open in this process; CUDA does not survive a fork."""
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + number).startswith(("/dev/nvidia", "/dev/kfd")):
                return True
        except OSError:
            pass  # the listing's own descriptor
    return False


def is_standard_only(argv):
    """Whether the script imports only the standard library and ddptop.

    Starting Python for such a rank takes less time than forking a process with torch and unloading
    torch when the rank exits.
    """
    try:
        text = script_text(argv)
        return b"torch" not in text and not imported(argv, text)
    except Exception:  # the module is elsewhere, or the rank itself reports it better
        return False


def imported(argv, text):
    """The top-level names that a script imports, except the standard library's and ddptop's.

    A relative import has the name ""; importlib and runpy count, since they import anything.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rank prints the script's own
        nodes = list(ast.walk(ast.parse(text)))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    own = importable_in(first_folder(argv))
    standard = (sys.stdlib_module_names | {"ddptop"}) - {"importlib", "runpy"} - own
    return {name.partition(".")[0] for name in modules} - standard


def script_text(argv):
    """The first megabyte of the script."""
    with open(script_file(argv), "rb") as file:
        return file.read(SCRIPT_BYTES)


def first_folder(argv):
    """The folder that a rank searches first for modules."""
    return os.getcwd() if argv[0] == "-m" else os.path.dirname(os.path.abspath(argv[0]))


def script_file(argv):
    """The file to run, if it can be determined without importing anything."""
    if argv[0] != "-m":
        return argv[0]
    stem = os.path.join(os.getcwd(), *argv[1].split("."))
    return stem + ".py" if os.path.exists(stem + ".py") else os.path.join(stem, "__main__.py")


def importable_in(folder):
    """The names of the modules and packages in a folder."""
    found = set()
    try:
        for name in os.listdir(folder):
            stem, dot, ending = name.partition(".")
            is_file = dot and ending.rpartition(".")[2] in ("py", "so")
            if is_file or os.path.exists(os.path.join(folder, name, "__init__.py")):
                found.add(stem)
    except OSError:
        pass
    return found


# -- a rank ------------------------------------------------------------------------------------


def be_rank(order, command, preloaded, probe):
    """Turn this process into a rank: streams, variables, random numbers, modules, and probe."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.orig_argv = command
    set_command_line(command, os.environ)
    gc.enable()
    preloaded.prepare(command)
    if probe:
        try:
            runpy.run_path(probe)
        except ImportError:
            pass  # there is no other sitecustomize
        except Exception:  # a job must run even if its probe cannot
            pass


class Preloaded:
    """Finds a hidden package with all of its modules when it is imported.

    Args:
        families: modules by name, by top-level name.
    """

    def __init__(self, families):
        self._families = families

    def prepare(self, command):
        """Begin to be used in a rank with this command and the present variables."""
        self._command = command
        self._rank_env, self._rank_cpus = dict(os.environ), os.sched_getaffinity(0)
        self._pid = os.getpid()
        if "triton" in self._families:
            atexit.register(self._unhide_all)
        self._families["torch"]["torch"].default_generator.seed()  # like random.py after a fork
        random = self._families.get("numpy", {}).get("numpy.random")
        if random is not None:
            random.seed()
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname, path=None, target=None):
        """The spec of a hidden package; None for anything else."""
        family = self._families.get(fullname)
        if family is None:
            return None
        own = family[fullname].__spec__
        loader: Any = Unhiding(self, family)
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location, spec.cached = own.has_location, own.cached
        return spec

    def check(self, family):
        """Restart this rank normally if torch has to be reloaded.

        Never once torch is in use, and never in a child that the script has forked.
        """
        is_moved = os.sched_getaffinity(0) != self._rank_cpus
        is_changed = is_moved or differs(self._rank_env, os.environ)
        if is_changed and "torch" in self._families and os.getpid() == self._pid:
            os.sched_setaffinity(0, self._rank_cpus)
            os.execve(self._command[0], self._command, self._rank_env)
        self._families = {
            name: modules for name, modules in self._families.items() if modules is not family
        }

    def _unhide_all(self):
        """Have Python free all modules when it exits; else Triton's nanobind reports leaks."""
        gc.unfreeze()
        for family in self._families.values():
            sys.modules.update(family)


class Unhiding:
    """Loads a hidden package by restoring its modules."""

    def __init__(self, preloaded, family):
        self._preloaded = preloaded
        self._family = family

    def create_module(self, spec):
        """The preloaded module."""
        self._preloaded.check(self._family)
        self._spec = self._family[spec.name].__spec__
        return self._family[spec.name]

    def exec_module(self, module):
        """Restore all of the package's modules without executing anything."""
        module.__spec__ = self._spec
        sys.modules.update(self._family)


def hide_modules(before):
    """Hide preloaded modules except the standard library's; forget the agent's own modules.

    Returns:
        A Preloaded, not yet in use.
    """
    families: dict = {}
    for name in [name for name in sys.modules if name not in before]:  # as imported, for teardown
        top = name.partition(".")[0]
        if top == "ddptop_agent":
            del sys.modules[name]
        elif (
            top not in sys.stdlib_module_names
            and getattr(sys.modules.get(top), "__spec__", None) is not None
        ):
            families.setdefault(top, {})[name] = sys.modules[name]
    for family in families.values():
        for name in family:
            del sys.modules[name]
    return Preloaded(families)


def run_script(argv):
    """Run `script ARGS` or `-m module ARGS` like the interpreter itself."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = first_folder(argv)
    sys.modules["__main__"] = module
    try:
        if argv[0] == "-m":
            sys.argv[:] = argv[1:]
            runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
            return
        path = os.path.abspath(argv[0])
        sys.argv[:] = argv
        module.__file__ = path
        module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        module.__dict__["__cached__"] = None
        with open(path, "rb") as file:
            source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = without_own_frames(sys.excepthook)
        raise


def without_own_frames(hook):
    """An excepthook whose tracebacks begin with the script's first frame."""

    def show(kind, error, trace):
        script = vars(sys.modules["__main__"])
        while trace is not None and trace.tb_frame.f_globals is not script:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    return show


# -- appearance in /proc -----------------------------------------------------------------------


class _Map(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack", "arg_start")),
        *((name, ctypes.c_uint64) for name in ("arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


_STAT_FIELDS = {
    "start_code": 26,
    "end_code": 27,
    "start_stack": 28,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
}
"""Field numbers in /proc/PID/stat, from 1, as in proc(5)."""
_shown: list = []
"""The memory with the command line and variables, which must stay allocated."""


def set_command_line(command, environ):
    """Have /proc show this command and these variables, which ps, nvidia-smi, and ddptop read.

    Args:
        command: the command's words.
        environ: variables by name.

    Raises:
        OSError: the kernel does not allow it.
    """
    arguments = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(
        os.fsencode(name) + b"=" + os.fsencode(value) + b"\0" for name, value in environ.items()
    )
    # private, because the kernel does not show shared memory
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, len(arguments) + len(variables)), flags=flags)
    memory.write(arguments + variables)
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    new = _Map(**{name: int(fields[number - 3]) for name, number in _STAT_FIELDS.items()})
    new.brk = libc.sbrk(ctypes.c_ssize_t(0))
    new.arg_start, new.arg_end = place, place + len(arguments)
    new.env_start, new.env_end = new.arg_end, new.arg_end + len(variables)
    new.exe_fd = 0xFFFFFFFF
    done = libc.prctl(
        PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(new), ctypes.c_ulong(ctypes.sizeof(new)), 0
    )
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _shown[:] = [memory]
