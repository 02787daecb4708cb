"""The agents as tools of an MCP server: `/mcp`.

Imports the MCP SDK, which takes a second: only a service with `doors.mcp` loads this package.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from mcp.server.lowlevel import Server
from starlette.routing import BaseRoute

from agentic_backend.surfaces.mcp.tools import AgentTools
from agentic_backend.surfaces.services import DoorServices
from backend_kit.mcp import DoorRules, McpDoor, answering, mcp_routes

_MAX_SESSIONS = 1000


def add_routes(services: Callable[[], DoorServices], identify: Callable[..., Any]) -> list[BaseRoute]:
    """The routes of this door. `services()` is called at each request."""
    made: list[tuple[DoorServices, McpDoor]] = []

    def door() -> McpDoor:
        state = services()
        if not made or made[-1][0] is not state:
            # The first request of this run of the service.
            made[:] = [(state, _door(state))]
            state.at_drain.append(made[-1][1].aclose)
        return made[-1][1]

    return mcp_routes(door, identify)


def _door(services: DoorServices) -> McpDoor:
    tools = AgentTools(services)
    server: Server[Any] = Server(
        "turnwise",
        version=version("turnwise"),
        title="Turnwise agents",
        instructions="Each tool asks one agent. Pass `session_id` of its answer to go on in the same conversation.",
        on_list_tools=tools.list_tools,
        on_call_tool=answering(tools.call_tool),
    )
    sessions, entrance = services.mcp_sessions, services.entrance
    rules = DoorRules(
        title=services.title,
        authorized_origins=entrance.origins,
        any_host=entrance.authenticated,
        issuer=entrance.issuer,
        public_url=services.public_url,
        sessions_per_user=sessions.per_user,
        max_sessions=_MAX_SESSIONS,
        idle_s=sessions.idle_s,
        send_s=services.hub.send_s,
    )
    return McpDoor(server, rules, services.tasks, limit_hit=services.limit_hit)
