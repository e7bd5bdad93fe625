"""The user's settings of the interface: keys, themes, ASCII, and remembered choices."""
