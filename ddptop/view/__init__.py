"""Turns data about jobs into what a user sees and understands. No Textual and no IO."""
