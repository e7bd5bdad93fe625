"""Import hooks: act right after a module was executed, and stand in for a missing `ddptop`."""

from __future__ import annotations

import _frozen_importlib
import sys

_IMPORTLIB_FILE = "<frozen importlib._bootstrap_external>"


class ImportHook:
    """Calls a function with each awaited module, once that module was executed.

    `find_spec` alone changes nothing: libraries ask whether torch exists long before they import
    it. The awaited module keeps its own loader.
    """

    def __init__(self, actions):
        self._actions = actions

    def find_spec(self, fullname, path=None, target=None):
        """The spec that the other finders give, armed; None for a module not awaited."""
        action = self._actions.get(fullname)
        if action is None:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                _arm(spec.loader, action)
                return spec
        return None


def _arm(loader, action):
    """Make `loader`, which serves one import, call `action` after executing the module."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module):
        try:
            del loader.exec_module
        except AttributeError:
            pass
        execute(module)
        try:
            action(module)
        except Exception:  # the script imports its module, whatever becomes of the probe
            pass

    # the frames of an import are trimmed from tracebacks by their file: a torch that fails to
    # import then reads as it does without the probe
    exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTLIB_FILE)
    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without room for attributes goes without the probe
        pass


class StandIn:
    """Last on sys.meta_path: a module of functions, where no real module of that name exists."""

    def __init__(self, name, *functions):
        self._name = name
        self._functions = functions

    def find_spec(self, fullname, path=None, target=None):
        """The stand-in's spec; asked only after every other finder has found nothing."""
        if fullname != self._name:
            return None
        return _frozen_importlib.ModuleSpec(fullname, self, origin="ddptop probe")  # type: ignore[arg-type]

    def create_module(self, spec):
        """Leave it to the import system: an ordinary module object will do."""

    def exec_module(self, module):
        """Fill the module."""
        module.__doc__ = "Stand-in for ddptop inside a job whose Python lacks the package."
        module.__all__ = [function.__name__ for function in self._functions]
        module.__dict__.update(zip(module.__all__, self._functions))
