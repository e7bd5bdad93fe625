"""What is known: frozen types of jobs, ranks, devices, and messages, and their disk formats."""
