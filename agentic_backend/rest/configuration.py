"""REST of the configuration that clients may read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import APIRouter

from agentic_backend.branding import Branding
from agentic_backend.rest.agents import AgentServices
from agentic_backend.rest.kpi_routes import KpiViews

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
"""What every caller may do with their own data."""
_OF_OPERATORS: Final = ("feedback:read_all", "kpi:read")
"""What an operator may see."""
_OF_MAKERS: Final = ("agents:create",)
_OF_EDITORS: Final = ("agents:delete", "agents:update")
"""What some callers may do: with any agent that is not configured, or with those that were shared with them for it."""


@dataclass(frozen=True, slots=True)
class PublicSettings:
    """What anybody may read of the configuration: how to sign in, and the limits of a message. No secrets.

    `currency` is that of costs, for those who may see them; None if no model has a price.
    """

    auth_enabled: bool
    realm_url: str | None
    client_id: str | None
    max_message_chars: int
    asks_per_min: int
    turns_per_user: int
    turn_s: float
    max_attached_files_per_user: int
    max_attached_file_size_mb: int
    static_agents_only: bool
    public_links: bool
    currency: str | None
    branding: Branding = field(default_factory=Branding)
    feature_flags: Mapping[str, bool] = field(default_factory=dict)
    properties: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        """Body of `GET /config/frontend_settings`."""
        return {
            "feature_flags": {
                **self.feature_flags,
                "agent_editing": not self.static_agents_only,
                "public_links": self.public_links,
            },
            "properties": {**self.properties, "siteDisplayName": self.branding.name},
            "branding": {
                "name": self.branding.name,
                "footer": self.branding.footer,
                "links": [{"label": link.label, "url": link.url} for link in self.branding.links],
            },
            "user_auth": {"enabled": self.auth_enabled, "realm_url": self.realm_url, "client_id": self.client_id},
            "currency": self.currency,
            "limits": {
                "max_message_chars": self.max_message_chars,
                "asks_per_min": self.asks_per_min,
                "turns_per_user": self.turns_per_user,
                "turn_s": self.turn_s,
                "max_attached_files_per_user": self.max_attached_files_per_user,
                "max_attached_file_size_mb": self.max_attached_file_size_mb,
            },
        }


def add_configuration(
    router: APIRouter,
    settings: Callable[[], PublicSettings],
    agents: Callable[[], AgentServices],
    views: Callable[[], KpiViews],
    caller: Any,
) -> None:
    """Add the routes. `settings()` is called at each request; `agents()` and `views()` decide further permissions."""

    @router.get("/config/frontend_settings")
    async def frontend_settings() -> dict[str, Any]:
        """How to sign in, and the limits of a message. No credentials."""
        return settings().wire()

    @router.get("/config/permissions")
    async def permissions(identity: caller) -> list[str]:
        """What the caller may do, as `resource:action`."""
        of_makers = _OF_MAKERS if agents().may_edit(identity) else ()
        of_editors = _OF_EDITORS if agents().may_edit_any(identity) else ()
        of_operators = _OF_OPERATORS if views().open_to(identity) else ()
        return sorted((*_PERMISSIONS, *of_makers, *of_editors, *of_operators))
