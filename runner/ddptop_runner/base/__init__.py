"""Nothing of the domain: clocks, errors, paths, bounded reads, configuration."""
