"""What made an attempt fail: pure functions over exits, logs and what the kernel counted."""
