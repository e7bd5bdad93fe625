"""Plain text output of verbs: tables, and lines updated in place."""
