"""Which GPUs a job gets: what was asked for, which are busy, who has claimed them, and waiting."""
