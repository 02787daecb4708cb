"""One real Keycloak for the test session, and what a test does there: sign in, shorten tokens, rotate keys."""

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deploy.keycloak.server import ADMIN, REALM, Keycloak
from tests.support.ports import free_port

CHECKOUT = Path(__file__).parents[2]
CLIENT = "turnwise"
LIFESPAN_S = 300
"""How long an access token lasts, as in the realm's file."""


@pytest.fixture(scope="session")
def keycloak() -> Iterator[Keycloak]:
    """One Keycloak for the whole session. A test that asks for it carries the marker `java`."""
    directory = Path(tempfile.mkdtemp(prefix="turnwise-test-kc-"))
    server = Keycloak(CHECKOUT, directory / "keycloak.log", free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def security_of(keycloak: Keycloak, mark: str = "Bearer") -> dict[str, Any]:
    """The section `security` of a service whose users are the realm's."""
    user = {"enabled": True, "client_id": CLIENT, "realm_url": keycloak.realm_url, "access_token_mark": mark}
    return {"user": user}


def claims_of(token: str) -> dict[str, Any]:
    """What a token says, unverified."""
    payload = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


async def tokens_of(keycloak: Keycloak, user: str, client: str = CLIENT, **more: str) -> dict[str, Any]:
    """The answer of the token endpoint: signed in with a password, or with `refresh_token`."""
    form = {"grant_type": "password", "client_id": client, "username": user, "password": user, "scope": "openid"}
    if "refresh_token" in more:
        form = {"grant_type": "refresh_token", "client_id": client, **more}
    url = f"{keycloak.realm_url}/protocol/openid-connect/token"
    async with aiohttp.ClientSession() as http, http.post(url, data=form) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


class Administrator:
    """Changes the realm; `async with Administrator(keycloak) as admin`. What it set for the realm ends with it."""

    def __init__(self, keycloak: Keycloak) -> None:
        self._keycloak = keycloak
        self._http = aiohttp.ClientSession()

    async def __aenter__(self) -> "Administrator":
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.let_tokens_last(LIFESPAN_S)
            await self.mark_tokens(by_header=False)
        finally:
            await self._http.close()

    async def let_tokens_last(self, seconds: int) -> None:
        """The lifespan of access tokens from now on."""
        await self._put("", accessTokenLifespan=seconds)

    async def mark_tokens(self, by_header: bool) -> None:
        """Whether access tokens of the client say `at+jwt` in their header from now on."""
        (client,) = await self._get("/clients?clientId=" + CLIENT)
        attributes = client["attributes"] | {"access.token.header.type.rfc9068": str(by_header).lower()}
        await self._put(f"/clients/{client['id']}", **client | {"attributes": attributes})

    async def let_page_in(self, origin: str) -> None:
        """The page at this origin may sign people in."""
        (client,) = await self._get("/clients?clientId=" + CLIENT)
        attributes = client["attributes"] | {"post.logout.redirect.uris": f"{origin}/"}
        client |= {"redirectUris": [f"{origin}/"], "webOrigins": [origin], "attributes": attributes}
        await self._put(f"/clients/{client['id']}", **client)

    async def sign_out(self, user: str) -> None:
        """End the user's sessions: their refresh tokens do not count any more."""
        (found,) = await self._get(f"/users?exact=true&username={user}")
        await self._ask("POST", f"/users/{found['id']}/logout", 204)

    async def rotate(self, name: str) -> None:
        """Sign with a new key from now on; the keys before it are still published."""
        realm = await self._get("")
        keys = await self._get("/components?type=org.keycloak.keys.KeyProvider")
        priority = max(int(key["config"].get("priority", ["0"])[0]) for key in keys) + 10
        component = {
            "name": name,
            "providerId": "rsa-generated",
            "providerType": "org.keycloak.keys.KeyProvider",
            "parentId": realm["id"],
            "config": {"priority": [str(priority)], "keySize": ["2048"], "algorithm": ["RS256"]},
        }
        await self._ask("POST", "/components", 201, component)

    async def _get(self, path: str) -> Any:
        return json.loads(await self._ask("GET", path, 200))

    async def _put(self, path: str, **body: Any) -> None:
        await self._ask("PUT", path, 204, body)

    async def _ask(self, method: str, path: str, status: int, body: Any = None) -> str:
        url = f"{self._keycloak.url}/admin/realms/{REALM}{path}"
        headers = {"Authorization": f"Bearer {await self._token()}"}
        async with self._http.request(method, url, json=body, headers=headers) as response:
            text = await response.text()
            assert response.status == status, text
            return text

    async def _token(self) -> str:
        """A token for one request: it lasts a minute, which a test may outlast on a busy machine."""
        form = {"grant_type": "password", "client_id": "admin-cli", "username": ADMIN, "password": ADMIN}
        url = f"{self._keycloak.url}/realms/master/protocol/openid-connect/token"
        async with self._http.post(url, data=form) as response:
            assert response.status == 200, await response.text()
            token: str = (await response.json())["access_token"]
            return token
