"""What is known and what it means, for a person. Without Textual and without IO."""
