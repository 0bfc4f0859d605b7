"""From sources to bronze, silver and gold: typed, checked, deduplicated, profiled, and judged by a gate."""
