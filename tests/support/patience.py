"""How long a test waits for what is bound to come."""

PATIENCE_S = 120.0
"""Only a hang reaches it, on however busy a machine: below the limit of a test, so that the wait itself is named."""
HANGS_S = 300.0
"""The same for benches, chaos and gates, which no limit of a test bounds: no figure is judged by it."""
