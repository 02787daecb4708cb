"""Why a local start is refused.

StartRefused
├── PortTaken
└── PostgresFailed
"""


class StartRefused(Exception):
    """The start cannot go on; `str()` is one sentence for the person at the terminal that says what to do."""


class PortTaken(StartRefused):
    """Something else listens on a port that is needed."""


class PostgresFailed(StartRefused):
    """The embedded Postgres cannot use its directory, or ended before it answered."""
