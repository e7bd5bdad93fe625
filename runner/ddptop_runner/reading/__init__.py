"""Text and files into progress: log lines, progress bars, event files."""
