"""A simulated NVIDIA driver, and programs that use it."""

from tests.support.stub_fixtures import make_reader, make_stub, no_library_env

__all__ = ["make_reader", "make_stub", "no_library_env"]
