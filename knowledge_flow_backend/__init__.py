"""The service that ingests documents and finds passages in them."""
