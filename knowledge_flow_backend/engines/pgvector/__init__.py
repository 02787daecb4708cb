"""Chunks in Postgres: vectors by pgvector, words by full-text search."""
