"""Defines every figure that is shown: how it is read, formatted, compared, and explained."""
