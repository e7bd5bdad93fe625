"""Serves the screens to browsers on this machine; requires the extra `ddptop[serve]`."""
