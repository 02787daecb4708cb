"""A caller's identity and credentials, and the error for callers without valid ones."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NoReturn

from backend_kit.auth.grant import Grant, KeyScope
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


def any_agent(_agent_id: str) -> bool:
    """The `uses` of a caller to whom the deployment closes no agent."""
    return True


@dataclass(frozen=True, slots=True)
class Identity:
    """A verified caller. `uid` owns sessions and documents; the rest is for display and permissions.

    `expires_at` is the token's end in seconds since the epoch, None where it has none (auth off). It takes no part
    in equality: a renewed token is the same caller. `grant` is what an API key allows of what this user may do, None
    for a caller with a token of their own, who may do all of it. `request_id` is that of the request that they came
    with, where a route asks who calls. `uses` says which agents the deployment lets them use.
    """

    uid: str
    username: str
    email: str = ""
    groups: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    expires_at: float | None = field(default=None, compare=False)
    grant: Grant | None = field(default=None, compare=False, repr=False)
    request_id: str = field(default="", compare=False, repr=False)
    uses: Callable[[str], bool] = field(default=any_agent, compare=False, repr=False)

    def come(self, uses: Callable[[str], bool], request_id: str) -> "Identity":
        """The caller as they come with one request: a third of what `dataclasses.replace` takes."""
        return Identity(
            self.uid,
            self.username,
            self.email,
            self.groups,
            self.roles,
            self.expires_at,
            self.grant,
            request_id,
            uses,
        )

    @property
    def key_id(self) -> str:
        """The id of the caller's API key, "" for a token."""
        return "" if self.grant is None else self.grant.key_id

    @property
    def acting(self) -> bool:
        """Whether a front end names this user by its own key: they have not signed in here."""
        return self.grant is not None and self.grant.acting

    def ended(self, leeway_s: float = 0.0, *, clock: Clock = time.time) -> bool:
        """Whether the token has run out, by the wall clock, or the key was revoked."""
        if self.grant is not None and self.grant.ended():
            return True
        return self.expires_at is not None and clock() >= self.expires_at + leeway_s

    def may(self, scope: KeyScope) -> bool:
        """Whether the caller's key has the scope; a token has all."""
        return self.grant is None or self.grant.may(scope)

    def may_ask(self, agent_id: str) -> bool:
        """Whether the caller may use this agent, and their key too."""
        return self.uses(agent_id) and (self.grant is None or self.grant.may_ask(agent_id))


class Credentials:
    """A caller's newest access token or key, only for calls to downstream services. All users of the object share
    renewals.

    It cannot be pickled, copied, encoded as JSON or printed, so that putting a token by mistake into a graph's state,
    a log line or a row fails at that place. `reveal` and `headers` are the only access; call them where the header is
    built.
    """

    __slots__ = ("_access_token", "_naming", "grant", "may_ask")

    def __init__(
        self, access_token: str, grant: Grant | None = None, naming: Callable[[], Mapping[str, str]] | None = None
    ) -> None:
        """`grant`: of a key, what it allows. `naming` makes the headers that name the user for whom it is used."""
        self._access_token = access_token
        self._naming = naming
        self.grant = grant
        self.may_ask: Callable[[str], bool] = any_agent if grant is None else grant.may_ask
        """Whether their holder may use an agent, by its id: `Identity.may_ask`."""

    def reveal(self) -> str:
        """The token itself, for an Authorization header."""
        return self._access_token

    def headers(self) -> dict[str, str]:
        """The headers by which another service of this deployment knows the same caller."""
        return {"Authorization": f"Bearer {self._access_token}", **(self._naming() if self._naming else {})}

    def renew(self, newer: "Credentials | str") -> None:
        """Replace the token by the caller's newer one, which later calls send."""
        if isinstance(newer, str):
            newer = Credentials(newer)
        self._access_token, self._naming = newer._access_token, newer._naming
        self.grant, self.may_ask = newer.grant, newer.may_ask

    def __repr__(self) -> str:
        return "Credentials(***)"

    def __copy__(self) -> NoReturn:
        raise TypeError("Credentials cannot be copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("Credentials cannot be copied")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Credentials cannot be serialised")


Headers = Iterable[tuple[bytes, bytes]]


def header(headers: Headers, name: bytes) -> str | None:
    """The first value of a header (`name` in lower case), None where it is absent."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return None


def bearer_of(headers: Headers) -> str | None:
    """The token of `Authorization: Bearer`. An empty token is none."""
    scheme, _, token = (header(headers, b"authorization") or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def token_of(headers: Headers) -> str | None:
    """The token of `Authorization: Bearer`, else the key of `x-api-key`."""
    return bearer_of(headers) or (header(headers, b"x-api-key") or "").strip() or None
