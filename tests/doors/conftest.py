"""Fixtures of the cases of docs/doors.md."""

from tests.support.service import start_service
from tests.support.tool_server import tool_server

__all__ = ["start_service", "tool_server"]
