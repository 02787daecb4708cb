"""Who may read what, over every route that reads: generated tables, with signed tokens, on both engines."""
