"""The Model Context Protocol as a door of a service: its HTTP endpoint, its sessions, its callers, its errors.

Imports the MCP SDK, which takes a second: only a service that opens the door loads this package.
"""

from backend_kit.mcp.calls import (
    Answer,
    CallTool,
    Context,
    answering,
    arguments_of,
    caller_of,
    detail,
    expect_scope,
    language_of,
    refused,
)
from backend_kit.mcp.door import McpDoor, mcp_routes
from backend_kit.mcp.rules import DoorRules

__all__ = [
    "Answer",
    "CallTool",
    "Context",
    "DoorRules",
    "McpDoor",
    "answering",
    "arguments_of",
    "caller_of",
    "detail",
    "expect_scope",
    "language_of",
    "mcp_routes",
    "refused",
]
