"""Why a local OpenSearch is refused.

StartRefused (turnwise.errors)
└── OpenSearchFailed
"""

from turnwise.errors import StartRefused


class OpenSearchFailed(StartRefused):
    """There is no Java for it, its jars cannot be had, or the node ended before it answered."""
