"""The state of one job: its attempts, its ranks, and what happens when one fails."""
