"""The authored agent, declaring what does not exist."""

from typing import Final

from tests.agentic_backend.agent.authored import build

RESTART: Final = "from_the_middle"
__all__ = ["RESTART", "build"]
