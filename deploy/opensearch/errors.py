"""Why a local OpenSearch is refused.

StartRefused (deploy.local.errors)
└── OpenSearchFailed
"""

from deploy.local.errors import StartRefused


class OpenSearchFailed(StartRefused):
    """There is no Java for it, its jars cannot be had, or the node ended before it answered."""
