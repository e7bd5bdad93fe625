"""Every figure that is shown: an entry says how it is read, written, compared, and explained."""
