"""One file a schema revision, never edited once it was released."""
