"""Where device metrics come from: NVML, read by a process of its own, and what its readers need.

Only the sampler process opens NVML: a driver can block or crash exactly when a device fails.
"""
