"""What a handshake contains: its token, its Origin and whether that is allowed, its trace, its language, its user."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from urllib.parse import parse_qsl

from starlette.requests import HTTPConnection

from agentic_backend.chat.frames import Asker
from agentic_backend.tracing.traceparent import HEADER, parse
from backend_kit.auth import (
    AuthError,
    Credentials,
    Headers,
    Identity,
    KeyScope,
    ScopeMissing,
    Verifier,
    know_caller,
    token_of,
)
from backend_kit.http import page_allowed

BEARER_SUBPROTOCOL = "bearer."
_MAX_QUERY_FIELDS = 64
_MAX_LANGUAGE_CHARS = 35


class TokenSource(StrEnum):
    """Where a token was found."""

    HEADER = "header"
    SUBPROTOCOL = "subprotocol"
    QUERY = "query"
    NONE = "none"


class Principal:
    """The user of a socket by its newest token. The user never changes; the token can be renewed."""

    def __init__(
        self,
        identity: Identity,
        credentials: Credentials,
        traceparent: str | None,
        verifier: Verifier,
        headers: Headers = (),
    ) -> None:
        """`headers` are the handshake's: they may name the user for whom a key is used."""
        self.identity = identity
        self._headers = tuple(headers)
        self.asker = Asker(identity.uid, credentials, traceparent)
        self._credentials = credentials
        self._verifier = verifier

    async def renew(self, token: str) -> None:
        """Replace the token by a newer one, which running turns use for their next calls.

        Raises AuthError if it does not verify or is another user's, ScopeMissing for a key that may not ask.
        """
        identity, credentials = await know_caller(self._verifier, token, self._headers)
        if identity.uid != self.identity.uid or credentials is None:
            raise AuthError("Invalid token")
        if not identity.may(KeyScope.ASK):
            raise ScopeMissing(field=f"scope:{KeyScope.ASK}")
        self.identity = identity
        self._credentials.renew(credentials)

    async def confirm(self) -> None:
        """Count one ask of a key, and look whether it is still valid. Raises AuthError if not, RateLimited's code above
        its rate, and the database's error if it cannot be checked."""
        if self.identity.grant is not None:
            await self.identity.grant.confirm()


def credential_from(
    headers: Headers, subprotocols: Sequence[str] = (), query: bytes = b"", *, allow_query_token: bool = False
) -> tuple[str | None, TokenSource]:
    """The token and where it was found: `Authorization: Bearer` or `x-api-key`, else subprotocol `bearer.<token>`, else
    `?token=`.

    `headers`, `subprotocols` and `query` are those of the ASGI scope. An empty token counts as none.
    """
    token = token_of(headers)
    if token is not None:
        return token, TokenSource.HEADER
    for name in subprotocols:
        if name.startswith(BEARER_SUBPROTOCOL) and len(name) > len(BEARER_SUBPROTOCOL):
            return name[len(BEARER_SUBPROTOCOL) :], TokenSource.SUBPROTOCOL
    token = _query_token(query) if allow_query_token else None
    return token, TokenSource.QUERY if token else TokenSource.NONE


def origin_allowed(
    origin: str | None, allowed: Collection[str], host: str | None, *, source: TokenSource, any_host: bool = False
) -> bool:
    """Whether a WebSocket handshake with this `Origin` is allowed (docs/trust.md#E5); pages as `page_allowed` says.

    No Origin means no browser: allowed with a token in the header or the query, and with no token at all, which the
    check of the credentials refuses next with its own close code. A subprotocol token is what browsers use, so one
    without an Origin is refused.
    """
    if origin is None:
        return source is not TokenSource.SUBPROTOCOL
    return page_allowed(origin, allowed, host, any_host=any_host)


def _query_token(query: bytes) -> str | None:
    try:
        fields = parse_qsl(query.decode("latin-1"), max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError:
        return None
    return next((value for key, value in fields if key == "token" and value), None)


def traceparent_of(connection: HTTPConnection) -> str | None:
    """The trace (W3C Trace Context) of a request or handshake, for the calls made by its asks. None without one, and
    where the standard allows none: for two of them, for example."""
    given = connection.headers.getlist(HEADER)
    parent = parse(given[0]) if len(given) == 1 else None
    return None if parent is None else str(parent)


def first_language(accepted: str | None) -> str | None:
    """The first language of an `Accept-Language`; None without one."""
    first = (accepted or "").partition(",")[0].partition(";")[0].strip()
    return first[:_MAX_LANGUAGE_CHARS] or None
