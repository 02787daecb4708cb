"""The issuer of tokens: there, with keys that can be used, and with the right time."""

import re
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import pytest

from backend_kit.doctor.checks import Diagnosis, Health, examine
from backend_kit.doctor.issuer import issuer_check
from backend_kit.settings import Security
from tests.support.issuer import Issuer, issuer, public_jwk, rsa_key
from tests.support.ports import free_port

pytestmark = pytest.mark.servers


@pytest.fixture
async def realm() -> AsyncIterator[Issuer]:
    async with issuer() as made:
        yield made


async def found(url: str, within_s: float = 10.0, **changes: Any) -> list[Diagnosis]:
    user = {"enabled": True, "client_id": "turnwise", "realm_url": url, **changes}
    return await examine([issuer_check(Security.model_validate({"user": user}))], within_s)


async def test_keys_that_can_be_used_are_counted(realm: Issuer) -> None:
    realm.keys.append(public_jwk("k2", rsa_key("k2")))
    keys, clock = await found(realm.url)
    assert (keys.state, keys.figure.startswith("2 keys for RS256 at 127.0.0.1:")) == (Health.OK, True)
    assert (clock.what, clock.state) == ("clock of issuer", Health.OK)


async def test_keys_of_another_algorithm_are_wrong(realm: Issuer) -> None:
    (one,) = await found(realm.url, algorithm="ES256")
    assert one.state is Health.WRONG
    assert one.figure.endswith("no usable key for ES256")
    assert "security.user.algorithm" in one.remedy


async def test_another_issuer_is_wrong(realm: Issuer) -> None:
    realm.discovery = {"issuer": "https://another.example.org"}
    (one,) = await found(realm.url)
    assert one.state is Health.WRONG
    assert "realm_url" in one.remedy
    assert "another.example.org" not in str(one)


@pytest.mark.parametrize("changes", [{"status": 500}, {"body": b"<html>"}])
async def test_what_is_no_issuer_is_wrong(realm: Issuer, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(realm, name, value)
    assert [one.state for one in await found(realm.url)] == [Health.WRONG]


async def test_a_clock_that_is_off_by_more_than_the_leeway_is_wrong(realm: Issuer) -> None:
    realm.date = formatdate(time.time() - 60, usegmt=True)
    _, clock = await found(realm.url)
    assert clock.state is Health.WRONG
    assert re.match(r"this machine is (5|6)\d", clock.figure)


async def test_nobody_there_is_away_and_silence_too(realm: Issuer) -> None:
    assert [one.state for one in await found(f"http://127.0.0.1:{free_port()}/realms/test")] == [Health.AWAY]
    realm.answers.clear()
    assert [one.figure for one in await found(realm.url, 0.1)] == ["no answer within 0.1 s"]


async def test_without_an_issuer_there_is_nothing_to_look_at() -> None:
    assert [one.state for one in await found("http://nowhere", enabled=False)] == [Health.NOT_USED]
    secret = Security.model_validate({"user": {"client_id": "turnwise"}, "hs256_secret": "s" * 32})
    assert [one.state for one in await examine([issuer_check(secret)])] == [Health.NOT_USED]
