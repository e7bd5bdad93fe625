"""Checkpoints: seen being written, asked for, and what a failure costs without them."""
