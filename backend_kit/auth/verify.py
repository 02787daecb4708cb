"""Verifiers of tokens: without authentication, with a shared secret (HS256), or with an issuer's public keys."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

import jwt

from backend_kit.auth.acting import RESERVED
from backend_kit.auth.identity import AuthError, Clock, Identity
from backend_kit.auth.keys import IssuerKeys

MAX_TOKEN_BYTES = 8 * 1024
MAX_LIFETIME_S = 24 * 3600
LEEWAY_S = 30
MIN_SECRET_BYTES = 32
REMEMBERED_TOKENS = 4096

_CACHE_TTL_S = 60.0
_MAX_UID_CHARS = 255

AccessTokenMark = Literal["at+jwt", "Bearer", "scp", "jti", "none"]
"""By what an issuer's access tokens differ from its ID tokens and other ones that it signs with the same key.

`at+jwt`: the header's `typ` (RFC 9068). `Bearer`: the payload's `typ`. `scp`, `jti`: that claim, which its ID tokens do
not have. `none`: nothing is demanded, and what is known of ID tokens is refused.
"""

_RFC_9068: Final = ("at+jwt", "application/at+jwt")
_OF_ID_TOKENS: Final = ("nonce", "at_hash", "c_hash")

# What the JSON and number code under PyJWT raises for a hostile token, in addition to PyJWT's own errors.
_BROKEN_TOKEN: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class Verifier(Protocol):
    """Turns a presented token into an Identity."""

    async def verify(self, token: str | None) -> Identity:
        """The caller behind `token`. Raises `AuthError`. Waits only if keys must be fetched, see `KeyWaits`."""
        ...


class NoAuth:
    """The explicit mode without authentication: everyone is `admin` by name, and has no admin role.

    Any token passes, and none at all. A socket must still send one (docs/contract.md#handshake-and-tokens), which
    its caller checks.
    """

    def __init__(self) -> None:
        self._identity = Identity(uid="admin", username="admin")

    async def verify(self, token: str | None) -> Identity:  # noqa: ARG002 - the shape of Verifier
        """The one identity of this mode."""
        return self._identity


class TokenVerifier:
    """The base of verifiers of signed tokens, with any kind of key; use one of the subclasses below.

    Requires exp, iat and sub (iss and aud too where they are configured), at most 24 h between iat and exp, and
    leaves 30 s of leeway between clocks. What verified is remembered by the token's SHA-256 for 60 s, not beyond exp.
    """

    algorithm: str

    def __init__(
        self,
        *,
        client_id: str = "",
        issuer: str | None = None,
        audience: str | None = None,
        mark: AccessTokenMark = "none",
        clock: Clock = time.time,
    ) -> None:
        """`client_id`: whose roles are read, and the only client whose tokens count where they name one (`azp`).

        `mark` is what an access token must show; `clock` the wall clock by which what is remembered ends.
        """
        self._clock = clock
        self._client_id = client_id
        self._issuer = issuer
        self._audience = audience
        self._mark = mark
        required = ["exp", "iat", "sub"]
        required += ["iss"] if issuer is not None else []
        required += ["aud"] if audience is not None else []
        self._options: Any = {"require": required, "verify_aud": audience is not None}
        self._cache: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._cache)

    async def verify(self, token: str | None) -> Identity:
        """The caller behind `token`. Raises `AuthError`."""
        if not token:
            raise AuthError("No authentication token provided")
        if len(token) > MAX_TOKEN_BYTES or not token.isascii():
            raise AuthError("Invalid token")
        digest = hashlib.sha256(token.encode()).digest()
        cached = self._cached(digest)
        if cached is not None:
            self.hits += 1
            return cached
        self.misses += 1
        decoded = self._decode(token, await self._key_of(token))
        claims = decoded["payload"]
        check_kind(decoded["header"], claims, self._mark)
        check_claims(claims, self._client_id)
        identity = identity_from(claims, self._client_id)
        self._remember(digest, identity)
        return identity

    async def _key_of(self, token: str) -> Any:
        """The key that the token must be signed with. Raises `AuthError` where there is none."""
        raise NotImplementedError

    def _decode(self, token: str, key: Any) -> dict[str, Any]:
        try:
            return jwt.decode_complete(
                token,
                key,
                algorithms=[self.algorithm],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options=self._options,
            )
        except jwt.ExpiredSignatureError:
            raise AuthError("Token has expired") from None
        except jwt.InvalidSignatureError:
            raise AuthError("Invalid token signature") from None
        except _BROKEN_TOKEN:
            # `from None`: PyJWT's message may quote the header or a claim.
            raise AuthError("Invalid token") from None

    def _cached(self, digest: bytes) -> Identity | None:
        entry = self._cache.get(digest)
        if entry is None:
            return None
        identity, until = entry
        # The wall clock too: it may have been set forward since the entry was made.
        if time.perf_counter() >= until or identity.ended(LEEWAY_S, clock=self._clock):
            del self._cache[digest]
            return None
        return identity

    def _remember(self, digest: bytes, identity: Identity) -> None:
        if len(self._cache) >= REMEMBERED_TOKENS:
            self._cache.popitem(last=False)
        self._cache[digest] = (identity, time.perf_counter() + _CACHE_TTL_S)


class HmacVerifier(TokenVerifier):
    """Verifies tokens signed with a shared secret (HS256), for closed deployments and tests.

    Raises ValueError if the secret is too short.
    """

    algorithm = "HS256"

    def __init__(
        self,
        secret: str,
        *,
        client_id: str = "",
        issuer: str | None = None,
        audience: str | None = None,
        mark: AccessTokenMark = "none",
        clock: Clock = time.time,
    ) -> None:
        super().__init__(client_id=client_id, issuer=issuer, audience=audience, mark=mark, clock=clock)
        if len(secret.encode()) < MIN_SECRET_BYTES:
            raise ValueError(f"the token secret must have at least {MIN_SECRET_BYTES} bytes (RFC 7518, 3.2)")
        self._secret = secret

    async def _key_of(self, token: str) -> str:  # noqa: ARG002 - there is but one
        return self._secret


class IssuerVerifier(TokenVerifier):
    """Verifies tokens that an issuer signed for one client: checks issuer, audience, and keys of one algorithm family.

    `keys.refresh_keys` must run in the background. A key that the token itself carries or refers to is ignored.
    """

    def __init__(self, keys: IssuerKeys, *, client_id: str, mark: AccessTokenMark = "none") -> None:
        super().__init__(client_id=client_id, issuer=keys.issuer, audience=client_id, mark=mark)
        self.keys = keys
        self.algorithm = keys.algorithm

    async def _key_of(self, token: str) -> jwt.PyJWK:
        try:
            head = jwt.get_unverified_header(token)
        except _BROKEN_TOKEN:
            raise AuthError("Invalid token") from None
        kid = head.get("kid")
        # Before the key: a token that cannot verify anyway must not cause a fetch.
        if head.get("alg") != self.algorithm or not isinstance(kid, str):
            raise AuthError("Invalid token")
        key = await self.keys.find(kid)
        if key is None:
            raise AuthError("Invalid token signature")
        return key


def check_kind(header: Mapping[str, Any], claims: Mapping[str, Any], mark: AccessTokenMark) -> None:
    """Check that this is an access token: an issuer signs ID, refresh and logout tokens with the same key, for the same
    client.

    Refused whatever `mark` says: another kind by the header's `typ` (`…+jwt`) or the payload's, and `events`, the mark
    of a logout token, which needs no other claim that access tokens lack. Raises `AuthError`.
    """
    kind, of_payload = str(header.get("typ", "")).lower(), claims.get("typ", "Bearer")
    positive = {
        "at+jwt": kind in _RFC_9068,
        "Bearer": claims.get("typ") == "Bearer",
        "scp": bool(claims.get("scp")),
        "jti": bool(claims.get("jti")),
    }
    other = (kind.endswith("+jwt") and kind not in _RFC_9068) or of_payload != "Bearer" or "events" in claims
    if other or not positive.get(mark, True):
        raise AuthError("Invalid token")
    # Keycloak before 24 repeats the `nonce` in access tokens, which say `Bearer`; no ID token does.
    known = mark != "none" or positive["at+jwt"] or positive["Bearer"]
    if not known and any(claim in claims for claim in _OF_ID_TOKENS):
        raise AuthError("Invalid token")


def check_claims(claims: Mapping[str, Any], client_id: str = "") -> None:
    """Check what signature, dates, issuer, audience and kind do not cover: lifetime and client of the token.

    Raises `AuthError`.
    """
    exp, iat = claims.get("exp"), claims.get("iat")
    if isinstance(exp, bool) or not isinstance(exp, int | float) or not isinstance(iat, int | float):
        raise AuthError("Invalid token")
    # Not `> MAX`: a NaN must not pass.
    if not 0 <= exp - iat <= MAX_LIFETIME_S:
        raise AuthError("Invalid token")
    # A token issued to another client may name us as an audience, and must still be refused.
    if client_id and claims.get("azp", client_id) != client_id:
        raise AuthError("Invalid token")


def identity_from(claims: Mapping[str, Any], client_id: str) -> Identity:
    """The claims of docs/contract.md#claims as an Identity. Raises `AuthError` for a `sub` that cannot be stored."""
    uid = claims.get("sub")
    if not isinstance(uid, str) or not 0 < len(uid) <= _MAX_UID_CHARS or not _storable(uid) or uid.startswith(RESERVED):
        raise AuthError("Invalid token")
    access = claims.get("resource_access")
    client = access.get(client_id) if isinstance(access, Mapping) else None
    roles = client.get("roles") if isinstance(client, Mapping) else None
    exp = claims.get("exp")
    return Identity(
        uid=uid,
        username=_text(claims.get("preferred_username")) or uid,
        email=_text(claims.get("email")),
        groups=tuple(_texts(claims.get("groups"))),
        roles=frozenset(_texts(roles)),
        expires_at=float(exp) if isinstance(exp, int | float) else None,
    )


def _storable(text: str) -> bool:
    """Neither NUL nor a lone surrogate: Postgres refuses both."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _text(value: object) -> str:
    return value if isinstance(value, str) and _storable(value) else ""


def _texts(value: object) -> list[str]:
    return [text for item in value if (text := _text(item))] if isinstance(value, list) else []
