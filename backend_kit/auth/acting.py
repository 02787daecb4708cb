"""Users whom a trusted front end names: the headers that name them, read and written."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import jwt

from backend_kit.auth.identity import AuthError, Clock, Headers, header

SIGNED_HEADER: Final = "X-OpenWebUI-User-Jwt"
ID_HEADER: Final = "X-OpenWebUI-User-Id"
EMAIL_HEADER: Final = "X-OpenWebUI-User-Email"
NAME_HEADER: Final = "X-OpenWebUI-User-Name"
RESERVED: Final = "via:"
"""How the uid of every named user begins. No token's `sub` may begin so, and no key's owner."""
MAX_LIFETIME_S: Final = 3600
_OWN_LIFETIME_S: Final = 60
_LEEWAY_S: Final = 30
_MAX_SIGNED: Final = 4096
_MAX_CHARS: Final = 128
_NAMING: Final = frozenset(name.lower().encode() for name in (SIGNED_HEADER, ID_HEADER, EMAIL_HEADER, NAME_HEADER))


@dataclass(frozen=True, slots=True)
class ActingUser:
    """A user as the front end knows them. `id` is printable ASCII; the rest is for display."""

    id: str
    email: str = ""
    name: str = ""

    def uid(self, namespace: str) -> str:
        """Their uid here: one that nobody else's can be. `namespace` "" means the identity provider's own users."""
        return f"{RESERVED}{namespace}:{self.id}" if namespace else self.id


def naming_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Those headers that name a user."""
    return [(name.lower(), value) for name, value in headers if name.lower() in _NAMING]


class ActingHeaders:
    """Reads and writes the headers. With a secret only the signed one counts, and plain ones are refused."""

    def __init__(self, secret: str | None = None, *, clock: Clock = time.time) -> None:
        """`secret`, of 32 bytes and more, signs by HS256 what the front end and this deployment's services say."""
        self._secret = secret
        self._clock = clock

    def read(self, named: Headers) -> ActingUser | None:
        """The user in what `naming_headers` found, None where nobody is named. Raises `AuthError`: a header that
        cannot be trusted or read never means somebody else, the key's owner least of all."""
        pairs = list(named)
        if not pairs:
            return None
        if len({name for name, _ in pairs}) < len(pairs):
            raise AuthError("Invalid token")
        signed = header(pairs, SIGNED_HEADER.lower().encode())
        if (signed is None) != (self._secret is None) or (signed is not None and len(pairs) > 1):
            raise AuthError("Invalid token")
        return self._plain(pairs) if signed is None else self._signed(signed)

    def write(self, user: ActingUser) -> dict[str, str]:
        """The headers that name the user to another service of this deployment, signed for a minute."""
        if self._secret is None:
            plain = {ID_HEADER: user.id, EMAIL_HEADER: quote(user.email, safe="@"), NAME_HEADER: quote(user.name)}
            return {name: value for name, value in plain.items() if value}
        now = int(self._clock())
        claims = {"id": user.id, "email": user.email, "name": user.name, "iat": now, "exp": now + _OWN_LIFETIME_S}
        return {SIGNED_HEADER: jwt.encode(claims, self._secret, "HS256")}

    def _plain(self, pairs: Iterable[tuple[bytes, bytes]]) -> ActingUser:
        found = {name.decode(): value.decode("latin-1") for name, value in pairs}
        email, name = (unquote(found.get(key.lower(), "")) for key in (EMAIL_HEADER, NAME_HEADER))
        return _user(found.get(ID_HEADER.lower(), ""), email, name)

    def _signed(self, token: str) -> ActingUser:
        assert self._secret is not None
        if len(token) > _MAX_SIGNED:
            raise AuthError("Invalid token")
        try:
            claims = jwt.decode(token, self._secret, ["HS256"], options=_BY_HAND)
        except jwt.InvalidSignatureError:
            raise AuthError("Invalid token signature") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise AuthError("Invalid token") from None
        self._check_dates(claims.get("iat"), claims.get("exp"))
        return _user(claims.get("sub", claims.get("id")), claims.get("email"), claims.get("name"))

    def _check_dates(self, iat: object, exp: object) -> None:
        if not _is_time(iat) or not _is_time(exp):
            raise AuthError("Invalid token")
        assert isinstance(iat, int | float)
        assert isinstance(exp, int | float)
        now = self._clock()
        # Not `> MAX`: a NaN must not pass.
        if not 0 <= exp - iat <= MAX_LIFETIME_S or not iat <= now + _LEEWAY_S:
            raise AuthError("Invalid token")
        if not now < exp + _LEEWAY_S:
            raise AuthError("Token has expired")


_BY_HAND: Final[Any] = {"require": ["exp", "iat"], "verify_exp": False, "verify_iat": False, "verify_aud": False}
"""Dates are compared with the clock that is passed in. Open WebUI names no audience."""


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _user(id_: object, email: object, name: object) -> ActingUser:
    if not isinstance(id_, str) or not 0 < len(id_) <= _MAX_CHARS or not all("!" <= char <= "~" for char in id_):
        raise AuthError("Invalid token")
    if id_.startswith(RESERVED):
        raise AuthError("Invalid token")
    return ActingUser(id_, _shown(email), _shown(name))


def _shown(value: object) -> str:
    return value[:_MAX_CHARS] if isinstance(value, str) and value.isprintable() else ""
