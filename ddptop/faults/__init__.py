"""Inject faults into a job to check that it survives them and reports them correctly.

`kinds` defines the faults and expected results, `commit` injects one, `trial` watches the job, and
`verdict` compares. `ddptop demo --fault`, the tests, and `make faults` all use these.
"""
