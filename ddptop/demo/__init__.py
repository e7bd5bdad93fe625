"""The training that `ddptop demo` launches."""
