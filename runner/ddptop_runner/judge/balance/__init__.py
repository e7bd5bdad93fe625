"""How a job's ranks sit on its devices, and what is wrong with that: pure functions."""
