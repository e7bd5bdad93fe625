"""Pure rendering: values in, styled lines out. Nothing here imports Textual or does IO."""
