"""The progress of a job: from its probes, its output, and the files that it logs to."""
