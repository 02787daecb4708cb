"""Tokens of an issuer: which ones open the door, and that no hostile one does or makes us fetch anything."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from backend_kit.auth import AccessTokenMark, AuthError, Identity, IssuerKeys, IssuerVerifier, KeyWaits
from tests.support.issuer import CLIENT, JWKS, Issuer, issuer, public_jwk, rsa_key
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers


def now() -> int:
    """Seconds since the epoch, at the moment: a run lasts longer than a token."""
    return int(time.time())


@pytest.fixture
async def made() -> AsyncIterator[Issuer]:
    async with issuer() as running:
        yield running


@pytest.fixture
async def verifier(made: Issuer) -> AsyncIterator[IssuerVerifier]:
    keys = IssuerKeys(made.url, waits=KeyWaits(fetch_s=PATIENCE_S, find_s=PATIENCE_S, start_s=PATIENCE_S))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(keys.refresh_keys())
        assert await keys.find("k1")
        yield IssuerVerifier(keys, client_id=CLIENT)
        running.cancel()


async def test_a_good_token_gives_the_identity_of_its_claims(made: Issuer, verifier: IssuerVerifier) -> None:
    until = now() + 900
    token = made.token(exp=until)
    identity = await verifier.verify(token)
    assert identity == Identity(uid="u-1", username="ada", groups=("/staff",), roles=frozenset({"user"}))
    assert identity.expires_at == until
    assert await verifier.verify(token) is identity
    assert (verifier.hits, verifier.misses) == (1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"azp": None},
        {"aud": ["account", CLIENT]},
        {"typ": None},
        {"groups": None},
        {"resource_access": None},
        {"nonce": "as Keycloak before 24 repeats it in tokens that say Bearer"},
        {"typ": None, "nonce": "n", "headers": {"typ": "at+jwt"}},
    ],
    ids=str,
)
async def test_what_a_token_may_leave_out(made: Issuer, verifier: IssuerVerifier, changes: dict[str, Any]) -> None:
    assert (await verifier.verify(made.token(**changes))).uid == "u-1"


def parts(header: object, payload: object, signature: bytes = b"x") -> str:
    raw = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in raw)


def signed_with_the_public_key(made: Issuer) -> str:
    """The published key taken for a shared secret."""
    pem = rsa_key("k1").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, _, _ = parts({"alg": "HS256", "kid": "k1"}, made.claims()).rpartition(".")
    signature = hmac.new(pem, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def brings_its_own_key(made: Issuer) -> str:
    return made.token(key=rsa_key("mallory"), headers={"jwk": public_jwk("k1", rsa_key("mallory"))})


def points_at_a_key(name: str) -> Callable[[Issuer], str]:
    return lambda made: made.token(key=rsa_key("mallory"), headers={name: made.url + "/mallory"})


def changed(signed: str) -> str:
    head, payload, signature = signed.split(".")
    other = json.loads(base64.urlsafe_b64decode(payload + "==")) | {"sub": "u-2"}
    return f"{head}.{base64.urlsafe_b64encode(json.dumps(other).encode()).rstrip(b'=').decode()}.{signature}"


LOGOUT = {"http://schemas.openid.net/event/backchannel-logout": {}}

HOSTILE: dict[str, Callable[[Issuer], str]] = {
    "none": lambda made: parts({"alg": "none", "kid": "k1"}, made.claims(), b""),
    "the public key as a shared secret": signed_with_the_public_key,
    "another algorithm of the same key": lambda made: jwt.encode(
        made.claims(), rsa_key("k1"), algorithm="RS512", headers={"kid": "k1"}
    ),
    "PS256": lambda made: jwt.encode(made.claims(), rsa_key("k1"), algorithm="PS256", headers={"kid": "k1"}),
    "another's key under our name": lambda made: made.token(key=rsa_key("mallory")),
    "no kid": lambda made: jwt.encode(made.claims(), rsa_key("k1"), algorithm="RS256"),
    "kid is a number": lambda made: parts({"alg": "RS256", "kid": 1}, made.claims()),
    "unknown kid": lambda made: made.token("mallory"),
    "unknown crit": lambda made: made.token(headers={"crit": ["x"], "x": 1}),
    "its own key": brings_its_own_key,
    "jku": points_at_a_key("jku"),
    "x5u": points_at_a_key("x5u"),
    "a changed payload": lambda made: changed(made.token()),
    "another issuer": lambda made: made.token(iss="https://evil.example/realms/test"),
    "another realm": lambda made: made.token(iss=made.url + "2"),
    "no issuer": lambda made: made.token(iss=None),
    "another audience": lambda made: made.token(aud="account"),
    "no audience": lambda made: made.token(aud=None),
    "another client": lambda made: made.token(azp="other"),
    "another client, by number": lambda made: made.token(azp=7),
    "no exp": lambda made: made.token(exp=None),
    "no iat": lambda made: made.token(iat=None),
    "no sub": lambda made: made.token(sub=None),
    "ten years": lambda made: made.token(exp=now() + 10 * 365 * 86400),
    "nbf in the future": lambda made: made.token(nbf=now() + 3600),
    "iat in the future": lambda made: made.token(iat=now() + 3600, exp=now() + 7200),
    "an ID token": lambda made: made.token(typ="ID"),
    "a refresh token": lambda made: made.token(typ="Refresh"),
    "an ID token with a nonce": lambda made: made.token(typ=None, nonce="n"),
    "an ID token with at_hash": lambda made: made.token(typ=None, at_hash="h"),
    "a logout token": lambda made: made.token(typ=None, events=LOGOUT, jti="j"),
    "a logout token that says Bearer": lambda made: made.token(events=LOGOUT),
    "a logout token by its header": lambda made: made.token(headers={"typ": "logout+jwt"}),
    "another kind by its header": lambda made: made.token(headers={"typ": "application/dpop+jwt"}),
    "100 KB": lambda made: made.token(padding="x" * 100_000),
    "just over 8 KB": lambda made: made.token(padding="x" * 6500),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_tokens_are_refused(
    made: Issuer, verifier: IssuerVerifier, hostile: Callable[[Issuer], str]
) -> None:
    before = made.asked.copy()
    with pytest.raises(AuthError) as caught:
        await verifier.verify(hostile(made))
    assert caught.value.detail in {"Invalid token", "Invalid token signature"}
    assert caught.value.__cause__ is None
    assert len(verifier) == 0
    assert made.asked == before, "nothing in a token makes us fetch anything so soon after the last fetch"


async def test_an_expired_token_has_its_own_words(made: Issuer, verifier: IssuerVerifier) -> None:
    with pytest.raises(AuthError) as caught:
        await verifier.verify(made.token(iat=now() - 600, exp=now() - 60))
    assert caught.value.detail == "Token has expired"


async def test_clocks_may_differ_by_half_a_minute(made: Issuer, verifier: IssuerVerifier) -> None:
    assert (await verifier.verify(made.token(iat=now() + 20, exp=now() + 120))).uid == "u-1"
    assert (await verifier.verify(made.token(iat=now() - 300, exp=now() - 5))).uid == "u-1"


async def test_tokens_are_verified_while_the_issuer_is_away(made: Issuer, verifier: IssuerVerifier) -> None:
    made.status = 500
    assert (await verifier.verify(made.token(sub="u-9"))).uid == "u-9"
    assert made.asked[JWKS] == 1


MARKED: dict[AccessTokenMark, list[dict[str, Any]]] = {
    "at+jwt": [
        {"typ": None, "headers": {"typ": "at+jwt"}},
        {"typ": None, "headers": {"typ": "application/AT+JWT"}},
        {"headers": {"typ": "at+jwt"}, "nonce": "n"},
    ],
    "Bearer": [{}, {"nonce": "n", "at_hash": "h"}, {"headers": {"typ": "at+jwt"}}],
    "scp": [{"typ": None, "scp": "read"}, {"typ": None, "scp": ["read"], "nonce": "n"}],
    "jti": [{"typ": None, "jti": "j"}],
}
UNMARKED: dict[AccessTokenMark, list[dict[str, Any]]] = {
    "at+jwt": [{}, {"typ": None}, {"headers": {"typ": ""}}],
    "Bearer": [{"typ": None}, {"typ": "ID"}, {"typ": "bearer"}, {"typ": None, "headers": {"typ": "at+jwt"}}],
    "scp": [{}, {"scp": ""}, {"scp": []}, {"scope": "read"}],
    "jti": [{}, {"jti": ""}],
}


@pytest.mark.parametrize(("mark", "changes"), [(mark, one) for mark, all_ in MARKED.items() for one in all_], ids=str)
async def test_what_shows_the_mark_of_its_issuer_is_an_access_token(
    made: Issuer, verifier: IssuerVerifier, mark: AccessTokenMark, changes: dict[str, Any]
) -> None:
    marked = IssuerVerifier(verifier.keys, client_id=CLIENT, mark=mark)
    assert (await marked.verify(made.token(**changes))).uid == "u-1"
    with pytest.raises(AuthError):
        await marked.verify(made.token(**changes, events=LOGOUT))


@pytest.mark.parametrize(("mark", "changes"), [(mark, one) for mark, all_ in UNMARKED.items() for one in all_], ids=str)
async def test_what_lacks_the_mark_of_its_issuer_is_none(
    made: Issuer, verifier: IssuerVerifier, mark: AccessTokenMark, changes: dict[str, Any]
) -> None:
    marked = IssuerVerifier(verifier.keys, client_id=CLIENT, mark=mark)
    with pytest.raises(AuthError) as caught:
        await marked.verify(made.token(**changes))
    assert (caught.value.detail, len(marked)) == ("Invalid token", 0)
