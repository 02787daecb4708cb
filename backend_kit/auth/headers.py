"""Headers of an ASGI scope, and the token that one of them carries."""

from collections.abc import Iterable

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
