"""Whether a group makes progress: what each rank does, how long that may take, and who is behind.

Pure but for `watch`, which keeps what was learned from update to update.
"""
