"""What viewers and commands use: launch, list, control, replay, and remove jobs."""
