"""Launchers of others: what a command names, which one a script needs, and how it is called."""
