"""The revisions of the index's own Postgres schema."""
