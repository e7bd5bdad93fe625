"""General-purpose modules: clocks, errors, paths, bounded reads, configuration."""
