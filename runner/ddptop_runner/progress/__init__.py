"""How far a job is: from its probes, from its output, and from the files that it logs to."""
