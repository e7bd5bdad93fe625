"""The command line in this process, the frozen machine, and the simulated driver."""

from tests.support.frozen import default_keys, frozen
from tests.support.in_process_cli import bad_input, ddptop_cli
from tests.support.stub_fixtures import make_reader, make_stub, no_library_env

__all__ = [
    "bad_input",
    "ddptop_cli",
    "default_keys",
    "frozen",
    "make_reader",
    "make_stub",
    "no_library_env",
]
