"""Faults committed on purpose, to see that a job survives them, and that its story tells them.

`kinds` says what there is and what should happen; `commit` does it, `trial` watches, `verdict`
compares. `ddptop demo --fault`, the tests and `make faults` all use these.
"""
