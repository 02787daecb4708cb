"""Durable storage of turns: the file that they are written to first, and the batcher that moves them to Postgres."""
