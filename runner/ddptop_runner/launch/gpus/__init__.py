"""Chooses a job's GPUs: the request, busy devices, reservations, and waiting."""
