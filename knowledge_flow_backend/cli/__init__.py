"""The command `knowledge-flow`."""
