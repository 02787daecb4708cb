"""Planted mistakes, each of which a named test must catch: `python -m tests.mutants` (docs/development.md)."""
