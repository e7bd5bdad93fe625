"""The Job and what it means: figures, status, text, comparison, help. No Textual, no I/O."""
