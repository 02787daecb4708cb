"""The command that deletes conversations nobody used for so many days: `python -m agentic_backend.prune`."""
