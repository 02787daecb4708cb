"""A caller's identity and credentials, and the error for callers without valid ones."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NoReturn

from backend_kit.wire import Code, ServiceError

AuthDetail = Literal[
    "No authentication token provided",
    "Invalid token signature",
    "Token has expired",
    "Invalid token",
]
"""The closed list of texts a client sees in `{"detail": …}` of a 401 (docs/protocol.md#handshake)."""

Clock = Callable[[], float]
"""Returns seconds since the epoch or another fixed moment."""


class AuthError(ServiceError):
    """No credentials, or credentials that do not verify. `detail` is the text for the client."""

    code: ClassVar[Code] = Code.UNAUTHENTICATED

    def __init__(self, detail: AuthDetail) -> None:
        super().__init__(detail)
        self.detail: AuthDetail = detail


@dataclass(frozen=True, slots=True)
class Identity:
    """A verified caller. `uid` owns sessions and documents; the rest is for display and permissions.

    `expires_at` is the token's end in seconds since the epoch, None where it has none (auth off). It takes no part
    in equality: a renewed token is the same caller.
    """

    uid: str
    username: str
    email: str = ""
    groups: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    expires_at: float | None = field(default=None, compare=False)

    def ended(self, leeway_s: float = 0.0, *, clock: Clock = time.time) -> bool:
        """Whether the token has run out, by the wall clock."""
        return self.expires_at is not None and clock() >= self.expires_at + leeway_s


class Credentials:
    """A caller's newest access token, only for calls to downstream services. All users of the object share renewals.

    It cannot be pickled, copied, encoded as JSON or printed, so that putting a token by mistake into a graph's state,
    a log line or a row fails at that place. `reveal` is the only access; call it where the header is built.
    """

    __slots__ = ("_access_token",)

    def __init__(self, access_token: str) -> None:
        self._access_token = access_token

    def reveal(self) -> str:
        """The token itself, for an Authorization header."""
        return self._access_token

    def renew(self, access_token: str) -> None:
        """Replace the token by the caller's newer one, which later calls send."""
        self._access_token = access_token

    def __repr__(self) -> str:
        return "Credentials(***)"

    def __copy__(self) -> NoReturn:
        raise TypeError("Credentials cannot be copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("Credentials cannot be copied")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Credentials cannot be serialised")
