"""Why a local start fails.

StartRefused
├── Unusable
│   └── PortTaken
└── PostgresFailed
"""

from typing import ClassVar

EXIT_FAILED = 1
EXIT_UNUSABLE = 2
"""The exit code of a service that cannot be used as it is configured, and of the start that finds it so."""


class StartRefused(Exception):
    """The start cannot go on; `str()` is one sentence that tells the user what to do."""

    exit_code: ClassVar[int] = EXIT_FAILED


class Unusable(StartRefused):
    """What was asked for cannot be had, however often it is tried: a file, an agent, a directory, a port."""

    exit_code = EXIT_UNUSABLE


class PortTaken(Unusable):
    """Another program listens on a port that is needed."""


class PostgresFailed(StartRefused):
    """The embedded Postgres cannot use its directory, or ended before it answered."""
