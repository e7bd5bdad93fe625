"""Findings on the training itself: data order, waits, memory, loss."""
