"""What is kept: history database, rank logs, evidence, and the run folders themselves."""
