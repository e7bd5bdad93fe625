"""Draws charts as lines of text: axes, cursors, bins, and curves."""
