"""Several jobs beside each other: their losses on one axis, and what differs between them."""
