"""Free loopback ports."""

import socket
from collections import deque

_GIVEN: deque[int] = deque(maxlen=200)
"""What was given lately: its server may not listen yet, and the kernel gives the same port twice now and then."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago. Prefer letting a server choose (port 0) where it can."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _GIVEN:
            _GIVEN.append(port)
            return port
