"""Starts ddptop's probe in a process of a job, then runs the sitecustomize that this file hides.

Any Python may start in a job's environment, so this file keeps to what Python 2.7 can read.
PYTHONPATH stays as it is, so that children are probed as well; only this process's sys.path loses
the folder. The ImportError of a missing next sitecustomize, and whatever a broken one raises, go
to site.py, which treats them as it would have without this file.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start_probe():
    if sys.version_info < (3, 8):
        return
    # the frozen originals of importlib are always loaded; importlib.util would cost 1 ms
    import _frozen_importlib
    import _frozen_importlib_external

    folder = os.path.dirname(_HERE)
    spec = _frozen_importlib_external.spec_from_file_location(
        "_ddptop_probe",
        os.path.join(folder, "probe.py"),
        submodule_search_locations=[folder],
    )
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["_ddptop_probe"] = module
    try:
        spec.loader.exec_module(module)
        module.start()
    except BaseException:
        sys.modules.pop("_ddptop_probe", None)
        raise


if "DDPTOP_PROBE_SOCK" in os.environ:
    try:
        _start_probe()
    except Exception:  # a job must run even if its probe cannot
        pass

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
# keep a reference, because Python 2 clears the namespace of an unreferenced module
_this_module = sys.modules.pop(__name__, None)
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
