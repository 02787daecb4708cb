"""The index engines behind the ports of `index`: which one is configured, and what both share."""
