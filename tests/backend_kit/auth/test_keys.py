import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from backend_kit.auth import AuthError, IssuerKeys, IssuerVerifier, KeyWaits
from backend_kit.auth.keys import MAX_BYTES
from tests.support.issuer import CLIENT, DISCOVERY, JWKS, Issuer, ec_key, issuer, public_jwk, rsa_key
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

PATIENT = KeyWaits(fetch_s=PATIENCE_S, find_s=PATIENCE_S, start_s=PATIENCE_S)
NO_COOL_DOWN = replace(PATIENT, cool_down_s=0.0)


@asynccontextmanager
async def kept(keys: IssuerKeys) -> AsyncIterator[IssuerKeys]:
    """Keys that are looked after until the end of the block."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(keys.refresh_keys())
        try:
            yield keys
        finally:
            running.cancel()


async def test_keys_are_there_before_anybody_asks_and_are_not_fetched_for_each() -> None:
    async with issuer() as made, kept(IssuerKeys(made.url, waits=PATIENT)) as keys:
        assert len({id(found) for found in [await keys.find("k1") for _ in range(5)]}) == 1
        assert made.asked == {DISCOVERY: 1, JWKS: 1}
        assert keys.reachable


async def test_a_look_up_hits_where_the_key_is_known_at_once() -> None:
    """One that must wait for a fetch misses, whether the fetch brings the key or not."""
    async with issuer() as made, kept(IssuerKeys(made.url, waits=NO_COOL_DOWN)) as keys:
        assert await keys.find("k1")
        assert (keys.hits, keys.misses) == (0, 1)
        assert [await keys.find(kid) for kid in ("k1", "unknown", "k1")].count(None) == 1
        assert (keys.hits, keys.misses) == (2, 2)


async def test_a_configured_address_needs_no_discovery() -> None:
    async with (
        issuer() as made,
        kept(IssuerKeys("https://id.example/realms/a", jwks_url=made.url + "/certs", waits=PATIENT)) as keys,
    ):
        assert await keys.find("k1")
        assert made.asked == {JWKS: 1}


async def test_many_who_ask_for_an_unknown_key_cause_one_fetch() -> None:
    async with issuer() as made:
        made.answers.clear()
        keys = IssuerKeys(made.url, waits=PATIENT)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(keys.find(f"k{number % 2}")) for number in range(50)]
            running = group.create_task(keys.refresh_keys())
            await made.heard.wait()
            made.answers.set()
            found = await asyncio.gather(*asked)
            running.cancel()
        assert [key is not None for key in found] == [False, True] * 25
        assert made.asked == {DISCOVERY: 1, JWKS: 1}


async def test_unknown_keys_are_asked_for_with_restraint() -> None:
    async with issuer() as made, kept(IssuerKeys(made.url, waits=PATIENT)) as keys:
        assert await keys.find("k1")
        assert [await keys.find(f"unknown-{number}") for number in range(100)] == [None] * 100
        assert made.asked[JWKS] == 1


async def test_a_flood_of_unknown_keys_costs_the_issuer_two_fetches_a_minute() -> None:
    """docs/trust.md#E8, on a clock of ours: three minutes of 20 unknown keys a second, and a key that is new in the
    middle."""
    seconds = 0.0
    async with issuer() as made, kept(IssuerKeys(made.url, waits=PATIENT, clock=lambda: seconds)) as keys:
        assert await keys.find("k1")
        fetched = [made.asked[JWKS]]
        found_at = None
        for second in range(1, 181):
            seconds = float(second)
            if second == 95:
                made.keys.append(public_jwk("k2", rsa_key("k2")))
            await asyncio.gather(*(keys.find(f"flood-{second}-{number}") for number in range(20)))
            fetched.append(made.asked[JWKS])
            if second >= 95 and found_at is None and await keys.find("k2"):
                found_at = second
            assert await keys.find("k1")
        a_minute = [later - earlier for earlier, later in zip(fetched, fetched[60:], strict=False)]
    assert (fetched[0], fetched[-1]) == (1, 7)
    assert max(a_minute) == 2
    assert found_at == 120, "the flood does not keep a new key out for longer than one cool-down"
    assert made.asked[DISCOVERY] == 1


async def test_a_new_key_works_for_the_first_who_shows_it() -> None:
    async with issuer() as made, kept(IssuerKeys(made.url, waits=NO_COOL_DOWN)) as keys:
        assert await keys.find("k1")
        made.keys = [public_jwk("k2", rsa_key("k2"))]
        assert await keys.find("k2")
        assert await keys.find("k1") is None, "a key that was withdrawn does not count any more"
        assert made.asked[DISCOVERY] == 1


def refuses(made: Issuer) -> None:
    made.status = 503


def is_broken(made: Issuer) -> None:
    made.body = b"<html>"


def is_endless(made: Issuer) -> None:
    made.body = b'{"keys": [' + b" " * MAX_BYTES + b"]}"


def is_no_object(made: Issuer) -> None:
    made.body = b"[]"


def has_no_keys(made: Issuer) -> None:
    made.keys = []


def points_away(made: Issuer) -> None:
    made.status, made.headers = 302, {"Location": made.url + "/elsewhere"}


@pytest.mark.parametrize("fails", [refuses, is_broken, is_endless, is_no_object, has_no_keys, points_away])
async def test_known_keys_go_on_while_the_issuer_fails(fails: Any) -> None:
    async with issuer() as made, kept(IssuerKeys(made.url, waits=NO_COOL_DOWN)) as keys:
        assert await keys.find("k1")
        fails(made)
        assert await keys.find("k2") is None
        assert not keys.reachable
        assert await keys.find("k1")
        assert "/realms/test/elsewhere" not in made.asked


async def test_known_keys_go_on_for_an_hour_without_the_issuer() -> None:
    """Not the hour, but every fetch that would fail in it: one each half minute."""
    waits = replace(PATIENT, first_retry_s=0.001, cool_down_s=0.001, refresh_s=0.001)
    async with issuer() as made, kept(IssuerKeys(made.url, waits=waits)) as keys:
        assert await keys.find("k1")
        made.status = 503
        failed = made.asked[DISCOVERY] + 120
        while made.asked[DISCOVERY] < failed:
            made.heard.clear()
            await made.heard.wait()
        assert not keys.reachable
        assert await keys.find("k1")


async def test_an_issuer_that_does_not_answer_is_given_up_and_holds_nobody() -> None:
    waits = replace(PATIENT, cool_down_s=0.0, fetch_s=0.5)
    async with issuer() as made, kept(IssuerKeys(made.url, waits=waits)) as keys:
        while not await keys.find("k1"):
            pass  # a busy machine may be too late for it
        made.answers.clear()
        made.heard.clear()
        waiting = asyncio.ensure_future(keys.find("k2"))
        await made.heard.wait()
        assert await keys.find("k1"), "a known key waits for nothing"
        assert await waiting is None
        assert not keys.reachable


async def test_an_unknown_key_is_refused_while_a_fetch_runs_and_what_that_brings_counts() -> None:
    """docs/trust.md#E8: an issuer that hangs holds no stranger's request; the one who waits beside it is a clock that
    was started first and is far slower than the wait, on the same loop."""
    waits = KeyWaits(fetch_s=PATIENCE_S, start_s=PATIENCE_S, cool_down_s=0.0)
    async with issuer() as made, kept(IssuerKeys(made.url, waits=waits)) as keys:
        assert await keys.find("k1")
        made.answers.clear()
        made.heard.clear()
        made.keys = [public_jwk("k2", rsa_key("k2"))]
        slower = asyncio.ensure_future(asyncio.sleep(2.0))
        first = await keys.find("k2")
        await made.heard.wait()
        second = await asyncio.gather(*(keys.find(f"unknown-{number}") for number in range(50)), keys.find("k2"))
        assert (first, set(second), slower.done()) == (None, {None}, False)
        assert await keys.find("k1"), "known keys go on"
        fetched = keys._fetched
        made.answers.set()
        await fetched.wait()
        assert await keys.find("k2"), "the fetch went on without anybody who waits for it"
        slower.cancel()


async def test_while_no_key_was_ever_fetched_a_token_waits_for_them() -> None:
    async with issuer() as made:
        made.answers.clear()
        async with kept(IssuerKeys(made.url, waits=replace(PATIENT, find_s=0.0))) as keys:
            assert keys.reachable is None
            waiting = asyncio.ensure_future(keys.find("k1"))
            await made.heard.wait()
            assert not waiting.done()
            made.answers.set()
            assert await waiting
            assert keys.reachable


async def test_keys_that_could_not_be_fetched_are_tried_again() -> None:
    async with issuer() as made:
        made.status = 500
        async with kept(IssuerKeys(made.url, waits=KeyWaits(first_retry_s=0.01))) as keys:
            while made.asked[DISCOVERY] < 3:
                made.heard.clear()
                await made.heard.wait()
            made.status = 200
            while not await keys.find("k1"):
                made.heard.clear()
                await made.heard.wait()
            assert keys.reachable


async def test_without_anybody_who_fetches_no_key_is_known() -> None:
    assert await IssuerKeys("http://127.0.0.1:9/realms/a", waits=KeyWaits(start_s=0.01)).find("k1") is None


@pytest.mark.parametrize("discovery", [{"issuer": "https://evil.example"}, {"jwks_uri": None}, {"jwks_uri": 7}])
async def test_a_discovery_document_that_is_not_the_issuers_is_refused(discovery: dict[str, Any]) -> None:
    async with issuer() as made:
        made.discovery = discovery
        async with kept(IssuerKeys(made.url, waits=PATIENT)) as keys:
            assert await keys.find("k1") is None
            assert made.asked == {DISCOVERY: 1}


async def test_keys_are_taken_from_the_issuers_own_origin_only() -> None:
    async with issuer() as made, issuer() as elsewhere:
        made.discovery = {"jwks_uri": elsewhere.url + "/certs"}
        async with kept(IssuerKeys(made.url, waits=PATIENT)) as keys:
            assert await keys.find("k1") is None
            assert elsewhere.asked == {}


async def test_only_keys_for_signatures_of_the_algorithm_count() -> None:
    async with issuer() as made:
        good = public_jwk("good", rsa_key("good"))
        made.keys = [
            good,
            {**good, "kid": "encrypts", "use": "enc"},
            {**good, "kid": "other", "alg": "RS512"},
            {**good, "kid": 7},
            {**good, "kid": "no-modulus", "n": ""},
            {key: value for key, value in good.items() if key != "kid"},
            public_jwk("weak", rsa_key("weak", 1024)),
            public_jwk("curve", ec_key("curve")),
            {"kty": "oct", "k": "AAAA", "kid": "shared", "alg": "RS256"},
            "no key at all",
            None,
        ]
        async with kept(IssuerKeys(made.url, waits=PATIENT)) as keys:
            assert await keys.find("good")
            assert set(keys._keys) == {"good"}


async def test_an_issuer_may_sign_with_elliptic_curves() -> None:
    async with issuer() as made:
        made.algorithm = "ES256"
        made.keys = [public_jwk("k1", ec_key("k1")), public_jwk("long", ec_key("long", ec.SECP384R1))]
        async with kept(IssuerKeys(made.url, waits=PATIENT, algorithm="ES256")) as keys:
            verifier = IssuerVerifier(keys, client_id=CLIENT)
            assert (await verifier.verify(made.token())).uid == "u-1"
            made.algorithm = "RS256"
            with pytest.raises(AuthError):
                await verifier.verify(made.token())
            assert set(keys._keys) == {"k1"}
