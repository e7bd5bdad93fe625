"""Carries a job's news and figures out of ddptop: notifications, hooks, and files."""
