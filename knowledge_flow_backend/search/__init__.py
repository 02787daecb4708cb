"""Finding chunks: router, service, and the index in Postgres behind the port of `index`."""
