"""Sessions and their history: the spool, Postgres behind it, the batcher between them, and what readers see."""
