"""Doors beside the service's own routes, over the same search and the same library."""
