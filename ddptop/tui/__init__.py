"""The terminal interface: a viewer without state that matters, which may be left at any time."""
