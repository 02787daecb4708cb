"""Planted mistakes, each of which a named test must catch: `python -m tests.mutants` (STYLE rule 12)."""
