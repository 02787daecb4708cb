"""Why a local start fails.

StartRefused
├── PortTaken
└── PostgresFailed
"""


class StartRefused(Exception):
    """The start cannot go on; `str()` is one sentence that tells the user what to do."""


class PortTaken(StartRefused):
    """Another program listens on a port that is needed."""


class PostgresFailed(StartRefused):
    """The embedded Postgres cannot use its directory, or ended before it answered."""
