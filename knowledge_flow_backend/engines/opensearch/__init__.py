"""Chunks in OpenSearch: found there, their text and rights in Postgres."""
