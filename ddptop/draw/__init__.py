"""Draws screens and tables as lines of styled text. No Textual and no IO."""
