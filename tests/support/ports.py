"""Free loopback ports."""

import socket


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago. Prefer letting a server choose (port 0) where it can."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
