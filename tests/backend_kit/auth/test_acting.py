"""The headers by which a front end names its user: what is believed, and what is refused."""

import time
from typing import Any

import jwt
import pytest

from backend_kit.auth import ActingHeaders, ActingUser, AuthError
from backend_kit.auth.acting import EMAIL_HEADER, ID_HEADER, NAME_HEADER, SIGNED_HEADER, naming_headers
from tests.support.people import SECRET

NOW = int(time.time())
CLAIMS = {"sub": "u-1", "email": "ada@example.com", "name": "Ada É", "role": "user", "iss": "open-webui"}
SIGNED, PLAIN = ActingHeaders(SECRET, clock=lambda: NOW), ActingHeaders()


def signed(key: str = SECRET, algorithm: str = "HS256", **changes: Any) -> list[tuple[bytes, bytes]]:
    """As Open WebUI builds it."""
    claims = {**CLAIMS, "iat": NOW, "exp": NOW + 300, **changes}
    token = jwt.encode({name: value for name, value in claims.items() if value is not None}, key, algorithm)
    return naming_headers([(SIGNED_HEADER.encode(), token.encode())])


def plain(**headers: bytes) -> list[tuple[bytes, bytes]]:
    names = {"id": ID_HEADER, "email": EMAIL_HEADER, "name": NAME_HEADER}
    return naming_headers([(names[name].encode(), value) for name, value in headers.items()])


def test_a_user_is_who_the_signature_or_the_plain_headers_name() -> None:
    ada = ActingUser("u-1", "ada@example.com", "Ada É")
    assert SIGNED.read(signed()) == ada
    assert SIGNED.read(signed(sub=None, id="u-1")) == ada
    assert PLAIN.read(plain(id=b"u-1", email=b"ada@example.com", name=b"Ada %C3%89")) == ada
    assert SIGNED.read([]) is PLAIN.read([]) is None


@pytest.mark.parametrize("user", [ActingUser("u-1"), ActingUser("a/b+c=", "é+x@example.com", "Ada É, 100 %")])
@pytest.mark.parametrize("headers", [SIGNED, PLAIN])
def test_what_one_service_writes_the_other_reads(headers: ActingHeaders, user: ActingUser) -> None:
    written = [(name.encode(), value.encode("ascii")) for name, value in headers.write(user).items()]
    assert headers.read(naming_headers(written)) == user


REFUSED = {
    "another key": signed("another secret of thirty-two bytes"),
    "another algorithm": signed(algorithm="HS512", key=SECRET * 3),
    "expired": signed(iat=NOW - 400, exp=NOW - 100),
    "not yet": signed(iat=NOW + 100, exp=NOW + 200),
    "too long": signed(exp=NOW + 7200),
    "no end": signed(exp=None),
    "no beginning": signed(iat=None),
    "nan": signed(exp=float("nan")),
    "nobody": signed(sub=None),
    "number": signed(sub=None, id=1),
    "empty": signed(sub=None, id=""),
    "space": signed(sub="a b"),
    "new line": signed(sub="a\n"),
    "long": signed(sub="a" * 129),
    "reserved": signed(sub="via:openwebui:x"),
    "no token": naming_headers([(SIGNED_HEADER.encode(), b"")]),
    "garbage": naming_headers([(SIGNED_HEADER.encode(), b"a.b.c")]),
    "none": naming_headers([(SIGNED_HEADER.encode(), jwt.encode(CLAIMS, "", "none").encode())]),
    "plain where it must be signed": plain(id=b"u-1"),
    "both": signed() + plain(id=b"u-2"),
    "twice": signed() + signed(sub="u-2"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_believed_names_nobody_else(what: str) -> None:
    with pytest.raises(AuthError):
        SIGNED.read(REFUSED[what])


@pytest.mark.parametrize(
    "headers",
    [signed(), plain(name=b"Ada"), plain(email=b"a@x.org"), plain(id=b""), plain(id=b"a") * 2, plain(id=b"\xe9")],
)
def test_without_a_secret_plain_headers_name_one_user_by_id(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(AuthError):
        PLAIN.read(headers)


def test_names_are_for_display_and_cannot_carry_signs_of_control() -> None:
    assert PLAIN.read(plain(id=b"u", name=b"a%0Ab", email=b"x" * 500)) == ActingUser("u", "x" * 128, "")


def test_the_clock_that_is_given_is_the_one_that_counts() -> None:
    later = ActingHeaders(SECRET, clock=lambda: NOW + 10_000.0)
    assert later.read([(k.lower().encode(), v.encode()) for k, v in later.write(ActingUser("u")).items()]) is not None
    with pytest.raises(AuthError, match="Token has expired"):
        later.read(signed())
