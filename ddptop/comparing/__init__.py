"""Job comparison: losses on one axis, and the differences between jobs."""
