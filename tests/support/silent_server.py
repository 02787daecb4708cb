"""The server of a service in the test's own process."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from backend_kit.http import ServeSettings, build_server
from backend_kit.http.server import Drain, DrainServer


class SilentServer(DrainServer):
    """A server that leaves the signals of the process to the test run."""

    def capture_signals(self) -> AbstractContextManager[None]:
        """Take over none."""
        return nullcontext()


def silent_server(app: Any, drain: Drain, settings: ServeSettings) -> SilentServer:
    """As `build_server`, for a test."""
    return SilentServer(build_server(app, drain, settings).config, drain)
