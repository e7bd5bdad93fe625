"""Output of verbs as plain text: tables, and lines that are drawn again in place."""
