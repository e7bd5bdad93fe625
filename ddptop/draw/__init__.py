"""Screens and tables as lines of styled text: values in, lines out. No Textual and no IO."""
