"""The interface as a person set it: keys, themes, ASCII, and what it remembers."""
