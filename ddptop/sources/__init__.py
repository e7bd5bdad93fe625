"""All reading of the interface, in one thread: run folders, histories, devices."""
