"""How long a test waits for what is bound to come."""

PATIENCE_S = 120.0
"""Only a hang reaches it, on however busy a machine: below the limit of a test, so that the wait itself can be named."""
