"""The service beside an issuer that is slow, away, or back again: nobody's token becomes a failure of ours."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from agentic_backend.app import Parts
from backend_kit.auth import KeyWaits
from tests.agentic_backend.records import until
from tests.chaos.control import ProxyProcess
from tests.support.issuer import CLIENT, issuer
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, hear, hear_until, say

PATIENT = KeyWaits(cool_down_s=0.0, fetch_s=PATIENCE_S, find_s=PATIENCE_S, start_s=PATIENCE_S)
"""An unknown key is asked for at once, and its answer is waited for."""


def security_of(made):
    return {"user": {"enabled": True, "client_id": CLIENT, "realm_url": made.url}}


async def asked(service, token, path="/chatbot/sessions"):
    async with service.http.get(BASE + path, headers={"Authorization": f"Bearer {token}"}) as response:
        return response.status, await response.json()


async def test_a_service_starts_while_its_issuer_is_away_and_lets_in_once_it_is_back(start_service):
    async with issuer() as made:
        made.status = 503
        async with start_service(security=security_of(made), parts=Parts(keys=PATIENT)) as service:
            assert await asked(service, made.token()) == (401, {"detail": "Invalid token signature"})
            async with service.http.get(f"{BASE}/ready") as response:
                assert response.status == 200
                assert (await response.json())["dependencies"]["identity_provider"] == {"status": "down"}
            made.status = 200
            assert (await asked(service, made.token()))[0] == 200
            async with service.http.get(f"{BASE}/ready") as response:
                assert (await response.json())["dependencies"]["identity_provider"] == {"status": "up"}


def lookups(service, result):
    return service.sample("app_cache_requests_total", cache="jwks", result=result)


@pytest.mark.one_instance("each process has its own keys of the issuer")
async def test_a_socket_is_renewed_by_a_key_that_is_new(start_service):
    async with issuer() as made, start_service(security=security_of(made), parts=Parts(keys=PATIENT)) as service:
        async with service.native(made.token()) as socket:
            made.keys = [made.public("k2")]
            await say(socket, type="auth", access_token=made.token("k2"))
            await say(socket, type="auth", access_token=made.token("k3"))
            await say(socket, type="ping")
            assert [(await hear(socket)).get("code") for _ in range(2)] == ["unauthenticated", None]
        # Not a token that was seen before: that one counts for a minute more.
        statuses = [(await asked(service, made.token(kid, sub="u-2")))[0] for kid in ("k1", "k2", "k3")]
        assert statuses == [401, 200, 401]
        # Known at once were k2, the second time, and k1 at first, if the first fetch had ended by then.
        await until(lambda: lookups(service, "hit") + lookups(service, "miss") == 6)
        assert lookups(service, "hit") in {1, 2}


async def test_the_page_may_connect_to_the_issuer_and_nowhere_else(start_service):
    async with issuer() as made, start_service(security=security_of(made)) as service:
        origin = made.url.removesuffix("/realms/test")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{service.port}") as http, http.get("/") as response:
            policy = response.headers["Content-Security-Policy"]
            assert f"connect-src 'self' {origin};" in policy
            assert f"form-action 'self' {origin};" in policy
            text = await response.text()
            assert f"connect-src 'self' {origin};" in text
            assert f"form-action 'self' {origin};" in text


async def prepared(service, token):
    """An ask in a new session of whoever the token names."""
    headers = {"Authorization": f"Bearer {token}"}
    async with service.http.post(f"{BASE}/chatbot/session", json={}, headers=headers) as response:
        session_id = (await response.json())["id"]
    return {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Hello"}


@asynccontextmanager
async def distant_issuer():
    """An issuer, and the fault proxy through which everybody knows it."""
    async with issuer() as made:
        with ProxyProcess(int(made.url.split("/")[2].rpartition(":")[2])) as proxy:
            await asyncio.to_thread(proxy.start)
            made.url = f"http://127.0.0.1:{proxy.port}/realms/test"
            yield made, proxy


async def works(service, made, name):
    """Somebody who was never seen here is let in, and asks on a socket."""
    token = made.token(sub=name)
    assert (await asked(service, token))[0] == 200
    ask = await prepared(service, token)
    async with service.native(token) as socket:
        await say(socket, **ask)
        await hear_until(socket, "final")


async def let_in(service, token):
    """Ask until the issuer's answer came in time, which a busy machine may prevent."""
    while (await asked(service, token))[0] != 200:
        pass


@pytest.mark.one_instance("each process has its own keys of the issuer")
async def test_an_issuer_behind_a_bad_network_holds_up_nobody_with_a_known_key(start_service):
    """docs/trust.md#E8: it hangs, answers after 30 s, or is gone. Issuer and service share this loop, which is
    watched."""
    async with distant_issuer() as (made, proxy):
        async with start_service(security=security_of(made), parts=Parts(keys=PATIENT)) as service:
            assert (await asked(service, made.token()))[0] == 200
            made.keys.append(made.public("k2"))
            await proxy.tell("hold")
            new = asyncio.ensure_future(asked(service, made.token("k2")))
            await works(service, made, "while it hangs")
            assert not new.done()
            await proxy.tell("release")
            assert (await new)[0] == 200, "the first who shows the new key is let in"

        impatient = replace(PATIENT, fetch_s=0.5)
        async with start_service(security=security_of(made), parts=Parts(keys=impatient)) as service:
            await let_in(service, made.token())
            for fault in ("delay down 30000 0", "refuse"):
                await proxy.tell(fault, "reset")
                made.keys.append(made.public(f"k-{fault}"))
                late = asyncio.ensure_future(asked(service, made.token(f"k-{fault}")))
                await works(service, made, fault)
                assert await late == (401, {"detail": "Invalid token signature"})
                async with service.http.get(f"{BASE}/ready") as response:
                    assert (await response.json())["dependencies"]["identity_provider"] == {"status": "down"}
                    assert response.status == 200
            await proxy.tell("normal")
            await let_in(service, made.token("k-refuse"))


async def closed_with(socket):
    async with asyncio.timeout(PATIENCE_S):
        await socket.wait_closed()
    return socket.close_code


@pytest.mark.parametrize("native", [True, False], ids=["native", "compatible"])
async def test_a_socket_ends_with_its_token_and_its_turn_before_it(start_service, native):
    """docs/trust.md#E6. A token that ended a moment ago still opens a socket, for the sake of clocks: nobody waits
    here."""
    async with (
        issuer() as made,
        start_service("mock;gap=20;tokens=50", security=security_of(made), parts=Parts(keys=PATIENT)) as service,
    ):
        now = int(time.time())
        good, ended = made.token(), made.token(iat=now - 60, exp=now - 1)
        ask = await prepared(service, good)

        def opened(token):
            return service.native(token) if native else service.compatible(token=token)

        async def shown(socket, token):
            """A later token of the same person; in the compatible protocol only an ask can carry one."""
            await say(socket, **({"type": "auth"} if native else ask), access_token=token)

        async with opened(ended) as idle, opened(good) as busy:
            assert await closed_with(idle) == 4401
            await say(busy, **ask)
            await hear_until(busy, "delta" if native else "stream")
            await shown(busy, ended)
            heard = await hear_until(busy, "final")
            assert heard[-1]["messages"][-1]["metadata"]["finish_reason"] == "stop"
            assert await closed_with(busy) == 4401


async def test_a_turn_may_outlive_its_token_and_the_socket_both(start_service):
    """A newer token of the same person that comes during the turn; another person's is refused."""
    async with (
        issuer() as made,
        start_service("mock;gap=20;tokens=50", security=security_of(made), parts=Parts(keys=PATIENT)) as service,
    ):
        now = int(time.time())
        ask = await prepared(service, made.token())
        async with service.native(made.token()) as socket:
            await say(socket, **ask)
            await hear_until(socket, "delta")
            for token in (made.token(iat=now - 60, exp=now - 1), made.token(sub="u-2"), made.token(exp=now + 900)):
                await say(socket, type="auth", access_token=token)
            heard = [await hear(socket)]
            while heard[-1]["type"] != "final":
                heard.append(await hear(socket))
            assert [frame["code"] for frame in heard if frame["type"] == "error"] == ["unauthenticated"]
            await say(socket, **ask)
            await hear_until(socket, "final")
