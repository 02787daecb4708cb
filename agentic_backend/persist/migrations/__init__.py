"""The versions of the schema, oldest first; a new one is a new file in `versions`."""
