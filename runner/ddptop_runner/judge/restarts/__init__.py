"""What happens after a failure: whether to restart, when, and on which devices."""
