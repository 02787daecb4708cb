"""Clients of other makers, unmodified, in installs of their own: `make doors-clients`."""
