"""Reads losses and steps from TensorBoard event files and Lightning's CSV."""
