"""REST of what a client may know of the configuration, and of agents that it would like to change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fastapi import APIRouter, HTTPException

_PERMISSIONS: Final = (
    "agents:read",
    "attachments:create",
    "attachments:delete",
    "attachments:read",
    "feedback:create",
    "feedback:delete",
    "feedback:read",
    "messages:create",
    "messages:read",
    "metrics:read",
    "sessions:create",
    "sessions:delete",
    "sessions:read",
    "sessions:update",
)
"""What every caller may do, with what is theirs; nobody may change agents over REST."""
_STATIC: Final = "Agents come from the configuration file alone (ai.use_static_config_only)."
_NOT_HERE: Final = (
    "This version takes agents from the configuration file alone, whatever ai.use_static_config_only says."
)


@dataclass(frozen=True, slots=True)
class PublicSettings:
    """What anybody may read of the configuration: how to sign in, and what a message may have. No secrets."""

    auth_enabled: bool
    realm_url: str | None
    client_id: str | None
    max_message_chars: int
    max_attached_files_per_user: int
    max_attached_file_size_mb: int
    static_agents_only: bool

    def wire(self) -> dict[str, Any]:
        """Body of `GET /config/frontend_settings`."""
        return {
            "feature_flags": {"agent_editing": False},
            "properties": {"siteDisplayName": "Turnwise"},
            "user_auth": {"enabled": self.auth_enabled, "realm_url": self.realm_url, "client_id": self.client_id},
            "limits": {
                "max_message_chars": self.max_message_chars,
                "max_attached_files_per_user": self.max_attached_files_per_user,
                "max_attached_file_size_mb": self.max_attached_file_size_mb,
            },
        }


def add_configuration(router: APIRouter, settings: Callable[[], PublicSettings], caller: Any) -> None:
    """The routes. `settings()` is asked at each request."""

    @router.get("/config/frontend_settings")
    async def frontend_settings() -> dict[str, Any]:
        return settings().wire()

    @router.get("/config/permissions")
    async def permissions(identity: caller) -> list[str]:  # noqa: ARG001 - the route is for known callers
        return list(_PERMISSIONS)

    def refused() -> HTTPException:
        return HTTPException(403, _STATIC if settings().static_agents_only else _NOT_HERE)

    # The bodies are not read: no agent may name a module, an address or a prompt of a client's.
    @router.post("/agents/create")
    async def create_agent(identity: caller) -> None:  # noqa: ARG001 - the route is for known callers
        raise refused()

    @router.put("/agents/update")
    async def update_agent(identity: caller) -> None:  # noqa: ARG001 - see above
        raise refused()

    @router.delete("/agents/{agent_id}", status_code=204)
    async def delete_agent(agent_id: str, identity: caller) -> None:  # noqa: ARG001 - see above
        raise refused()
