"""The command that deletes conversations unused for a number of days: `python -m agentic_backend.prune`."""
