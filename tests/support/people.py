"""Users with tokens of their own, for tests of who may see what."""

import time
from typing import Any

import jwt

SECRET = "a secret of at least thirty-two bytes"
SECURITY: dict[str, Any] = {"user": {"enabled": True}, "hs256_secret": SECRET}
"""The section `security` of a service that these users may sign in to."""


def token_of(user: str, life_s: int = 600) -> str:
    """A token that is good for so long."""
    now = int(time.time())
    return jwt.encode({"sub": user, "iat": now, "exp": now + life_s}, SECRET, "HS256")


def headers_of(user: str) -> dict[str, str]:
    """What the user's REST requests carry."""
    return {"Authorization": f"Bearer {token_of(user)}"}
