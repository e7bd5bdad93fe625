"""Charts as lines of text: axes, cursors, bins, and what is painted into them."""
