"""The screens of the terminal interface."""
