"""Device metrics from NVML, read by a separate process, and what readers of its output need.

Only the sampler process opens NVML, because a driver can block or crash when a device fails.
"""
