"""One parser a format, each from bytes to the canonical text and its blocks. They run in children only."""
