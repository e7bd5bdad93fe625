"""Names mistakes in the training itself."""
