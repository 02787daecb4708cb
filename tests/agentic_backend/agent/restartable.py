"""The authored agent, whose cut-off turns may run again, and which never needs the asker's token."""

from typing import Final

from tests.agentic_backend.agent.authored import build

RESTART: Final = "from_question"
CREDENTIALS: Final = False
__all__ = ["CREDENTIALS", "RESTART", "build"]
