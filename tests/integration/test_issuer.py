"""The service beside an issuer that is slow, away, or back again: nobody's token becomes a failure of ours."""

import aiohttp

from backend_kit.auth import keys as keys_module
from tests.support.issuer import CLIENT, issuer
from tests.support.service import BASE, hear, say


def security_of(made):
    return {"user": {"enabled": True, "client_id": CLIENT, "realm_url": made.url}}


async def asked(service, token, path="/chatbot/sessions"):
    async with service.http.get(BASE + path, headers={"Authorization": f"Bearer {token}"}) as response:
        return response.status, await response.json()


async def test_a_service_starts_while_its_issuer_is_away_and_lets_in_once_it_is_back(start_service, monkeypatch):
    monkeypatch.setattr(keys_module, "COOL_DOWN_S", 0.0)
    async with issuer() as made:
        made.status = 503
        async with start_service(security=security_of(made)) as service:
            assert await asked(service, made.token()) == (401, {"detail": "Invalid token signature"})
            async with service.http.get(f"{BASE}/ready") as response:
                assert response.status == 200
                assert (await response.json())["dependencies"]["identity_provider"] == {"status": "down"}
            made.status = 200
            assert (await asked(service, made.token()))[0] == 200
            async with service.http.get(f"{BASE}/ready") as response:
                assert (await response.json())["dependencies"]["identity_provider"] == {"status": "up"}


async def test_a_socket_is_renewed_by_a_key_that_is_new(start_service, monkeypatch):
    monkeypatch.setattr(keys_module, "COOL_DOWN_S", 0.0)
    async with issuer() as made, start_service(security=security_of(made)) as service:
        async with service.native(made.token()) as socket:
            made.keys = [made.public("k2")]
            await say(socket, type="auth", access_token=made.token("k2"))
            await say(socket, type="auth", access_token=made.token("k3"))
            await say(socket, type="ping")
            assert [(await hear(socket)).get("code") for _ in range(2)] == ["unauthenticated", None]
        # Not a token that was seen before: that one counts for a minute more.
        statuses = [(await asked(service, made.token(kid, sub="u-2")))[0] for kid in ("k1", "k2", "k3")]
        assert statuses == [401, 200, 401]


async def test_the_page_may_connect_to_the_issuer_and_nowhere_else(start_service):
    async with issuer() as made, start_service(security=security_of(made)) as service:
        origin = made.url.removesuffix("/realms/test")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{service.port}") as http, http.get("/") as response:
            policy = response.headers["Content-Security-Policy"]
            assert f"connect-src 'self' {origin};" in policy
            assert f"connect-src 'self' {origin};" in await response.text()
