"""Why a local Java server is refused.

StartRefused (turnwise.errors)
└── JavaServerFailed
"""

from turnwise.errors import StartRefused


class JavaServerFailed(StartRefused):
    """There is no Java for it, what it is made of cannot be had, or it ended before it answered."""
