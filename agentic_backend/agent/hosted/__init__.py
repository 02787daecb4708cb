"""Compiled graphs of others, unmodified: where they come from and how they are run."""
