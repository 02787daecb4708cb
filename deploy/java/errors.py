"""Why a local Java server cannot run.

StartRefused (turnwise.errors)
└── JavaServerFailed
"""

from turnwise.errors import StartRefused


class JavaServerFailed(StartRefused):
    """Java is missing, the server cannot be downloaded, or it exited before it answered."""
