import asyncio
import base64
import copy
import json
import pickle
import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_kit.auth import AuthError, Credentials, HmacVerifier, Identity, NoAuth
from backend_kit.auth.verify import REMEMBERED_TOKENS, identity_from

SECRET = "a secret of at least thirty-two bytes"
ISSUER = "https://id.example/realms/main"
AUDIENCE = "turnwise"


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    body = {
        "sub": "u-1",
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": now,
        "exp": now + 6 * 3600,  # the tables of tokens are made when the run begins
        "preferred_username": "ada",
        "email": "ada@example.com",
        "groups": ["/staff", "/maths"],
        "resource_access": {"app": {"roles": ["viewer"]}, "other": {"roles": ["admin"]}},
    }
    body.update(changes)
    return {key: value for key, value in body.items() if value is not None}


def token(key: str = SECRET, headers: dict[str, Any] | None = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm="HS256", headers=headers)


def raw_token(header: object, payload: object | bytes, signature: bytes = b"x") -> str:
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, signature))


@pytest.fixture
def verifier() -> HmacVerifier:
    return HmacVerifier(SECRET, client_id="app", issuer=ISSUER, audience=AUDIENCE)


async def test_a_good_token_gives_the_identity_of_its_claims(verifier: HmacVerifier) -> None:
    body = claims()
    assert await verifier.verify(jwt.encode(body, SECRET, algorithm="HS256")) == Identity(
        uid="u-1",
        username="ada",
        email="ada@example.com",
        groups=("/staff", "/maths"),
        roles=frozenset({"viewer"}),
    )
    assert (await verifier.verify(jwt.encode(body, SECRET, algorithm="HS256"))).expires_at == body["exp"]


@pytest.mark.parametrize("absent", [None, ""])
async def test_no_token_is_said_as_such(verifier: HmacVerifier, absent: str | None) -> None:
    with pytest.raises(AuthError) as caught:
        await verifier.verify(absent)
    assert (caught.value.detail, caught.value.status) == ("No authentication token provided", 401)


async def test_expired_and_wrongly_signed_tokens_have_their_own_words(verifier: HmacVerifier) -> None:
    now = int(time.time())
    with pytest.raises(AuthError) as caught:
        await verifier.verify(token(iat=now - 700, exp=now - 60))
    assert caught.value.detail == "Token has expired"
    with pytest.raises(AuthError) as caught:
        await verifier.verify(token("another secret of thirty-two bytes or more"))
    assert caught.value.detail == "Invalid token signature"


NOW = int(time.time())
HOSTILE = {
    "none": raw_token({"alg": "none", "typ": "JWT"}, claims(), b""),
    "none, mixed case": raw_token({"alg": "nOnE"}, claims(), b""),
    "HS512": jwt.encode(claims(), SECRET + SECRET, algorithm="HS512"),
    "RS256 header": raw_token({"alg": "RS256"}, claims()),
    "unknown crit": token(headers={"crit": ["exp", "x"], "x": 1}),
    "wrong issuer": token(iss="https://evil.example"),
    "no issuer": token(iss=None),
    "wrong audience": token(aud="other"),
    "no audience": token(aud=None),
    "no exp": token(exp=None),
    "no iat": token(iat=None),
    "no sub": token(sub=None),
    "ten years": token(exp=NOW + 10 * 365 * 86400),
    "iat in the future": token(iat=NOW + 6 * 3600, exp=NOW + 7 * 3600),
    "nbf in the future": token(nbf=NOW + 5 * 3600),
    "ID token": token(typ="ID"),
    "refresh token": token(typ="Refresh"),
    "ID token with a nonce": token(nonce="n"),
    "logout token": token(events={"http://schemas.openid.net/event/backchannel-logout": {}}),
    "another kind by its header": token(headers={"typ": "logout+jwt"}),
    "sub is a number": raw_token({"alg": "HS256"}, claims(sub=7)),
    "empty sub": token(sub=""),
    "sub with NUL": token(sub="a\0b"),
    "endless sub": token(sub="a" * 256),
    "exp is a text": token(exp="soon"),
    "exp is infinite": token(exp=float("inf")),
    "exp is no number": token(exp=float("nan")),
    "iat is no number": token(iat=float("nan")),
    "two parts": "a.b",
    "not base64": "!.!.!",
    "not ASCII": "é.é.é",
    "deep payload": raw_token({"alg": "HS256"}, b"[" * 5000),
    "deep header": raw_token(b"[" * 5000, claims()),
    "payload is a list": raw_token({"alg": "HS256"}, [1]),
    "100 KB": token(padding="x" * 100_000),
    "just too long": token(padding="x" * 7000),
    "embedded key": token("attacker's own key, thirty-two bytes", headers={"jwk": {"kty": "oct", "k": "AAAA"}}),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_tokens_are_refused(verifier: HmacVerifier, hostile: str) -> None:
    with pytest.raises(AuthError) as caught:
        await verifier.verify(hostile)
    assert caught.value.detail in {"Invalid token", "Invalid token signature"}
    assert caught.value.__cause__ is None
    assert len(verifier) == 0


async def test_a_token_that_ends_before_it_begins_is_refused(verifier: HmacVerifier) -> None:
    now = int(time.time())
    with pytest.raises(AuthError):
        await verifier.verify(token(iat=now + 20, exp=now + 10))
    assert len(verifier) == 0


@given(st.text() | st.binary().map(lambda raw: raw_token({"alg": "HS256"}, raw)))
async def test_no_text_whatever_raises_anything_else(text: str) -> None:
    with pytest.raises(AuthError):
        await HmacVerifier(SECRET).verify(text)


async def test_issuer_and_audience_count_only_where_they_are_configured() -> None:
    assert (await HmacVerifier(SECRET).verify(token(iss=None, aud="any"))).uid == "u-1"


def test_a_short_secret_is_refused_when_the_service_starts() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        HmacVerifier("short")


async def test_what_verified_is_remembered_within_a_bound() -> None:
    verifier = HmacVerifier(SECRET)
    first = token(sub="0")
    identity = await verifier.verify(first)
    assert await verifier.verify(first) is identity
    for number in range(1, REMEMBERED_TOKENS + 2):
        await verifier.verify(token(sub=str(number)))
        if number % 100 == 0:
            await asyncio.sleep(0)
    assert len(verifier) == REMEMBERED_TOKENS
    assert await verifier.verify(first) is not identity, "the oldest makes room"


async def test_a_remembered_token_ends_at_its_exp() -> None:
    seconds = time.time()
    verifier = HmacVerifier(SECRET, clock=lambda: seconds)
    text = token(exp=int(seconds) + 600)
    remembered = await verifier.verify(text)
    assert await verifier.verify(text) is remembered
    seconds += 600 + 31
    # Not from memory but decoded again; PyJWT has a clock of its own and finds it good.
    assert await verifier.verify(text) is not remembered


async def test_no_auth_is_admin_by_name_and_nothing_more() -> None:
    identity = await NoAuth().verify(None)
    assert (identity.uid, identity.username, identity.roles, identity.groups) == ("admin", "admin", frozenset(), ())
    assert await NoAuth().verify("anything") == identity


@pytest.mark.parametrize("value", [None, 7, "x", {"app": None}, {"app": {"roles": "admin"}}, {"app": {"roles": [1]}}])
def test_misshapen_roles_are_none(value: object) -> None:
    assert identity_from(claims(resource_access=value, groups="all"), "app").roles == frozenset()


def test_credentials_do_not_leave_by_accident() -> None:
    credentials = Credentials("canary")
    assert "canary" not in f"{credentials!r} {credentials} {[credentials]}"
    assert credentials.reveal() == "canary"
    credentials.renew("newer canary")
    assert credentials.reveal() == "newer canary"
    leaks: list[Any] = [pickle.dumps, copy.copy, copy.deepcopy, json.dumps, vars, dict]
    for leak in leaks:
        with pytest.raises(TypeError):
            leak(credentials)
