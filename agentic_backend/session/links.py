"""Links by which others read a conversation, as long as its owner lets them."""

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, Protocol

from backend_kit.auth import AuditEvent

Audience = Literal["signed_in", "anybody"]

TOKEN_CHARS: Final = 43
_TOKEN_BYTES: Final = 32


def new_token() -> str:
    """What a link ends with: 256 random bits as 43 characters of A-Z a-z 0-9 `-` `_`."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def digest_of(token: str) -> bytes:
    """Everything that is stored of a token. A token cannot be guessed, so one round of hashing is enough."""
    return sha256(token.encode()).digest()


@dataclass(frozen=True, slots=True)
class LinkWanted:
    """A link to be created. `up_to` is the rank of the last message that it shows, None to include later ones; it
    expires after `days`, None for never."""

    session_id: str
    user_id: str
    audience: Audience
    up_to: int | None
    days: int | None


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A link to one session of `user_id`. Times are ISO 8601; an expired one stays listed until it is revoked."""

    id: str
    session_id: str
    user_id: str
    audience: Audience
    up_to: int | None
    created_at: str
    expires_at: str | None

    def wire(self) -> dict[str, Any]:
        """The link as its owner sees it; its token is no longer known."""
        return {
            "id": self.id,
            "audience": self.audience,
            "later_turns": self.up_to is None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
        }


class LinkStore(Protocol):
    """Links, deleted with their sessions. Each method may raise `HistoryUnavailable`."""

    async def make(
        self, link_id: str, digest: bytes, wanted: LinkWanted, most: int, event: AuditEvent
    ) -> ShareLink | None:
        """Store a new link with its event; None where the session has `most` already, or is not the user's."""

    async def of_session(self, session_id: str, user_id: str) -> list[ShareLink]:
        """Those of one of the user's sessions, newest first."""

    async def revoke(self, link_id: str, session_id: str, user_id: str, event: AuditEvent) -> bool:
        """Delete one of the user's with its event. False if there is none."""

    async def find(self, digest: bytes) -> ShareLink | None:
        """The valid link of a token: neither revoked nor expired, of a session that is not deleted."""
