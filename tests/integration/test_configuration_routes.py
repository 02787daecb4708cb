"""What a client may know of the configuration, and that no agents are made over REST where the file says so."""

import pytest

from tests.support.people import SECURITY, headers_of
from tests.support.service import BASE

CHANGES = [("POST", "/agents/create"), ("PUT", "/agents/update"), ("DELETE", "/agents/Georges")]


async def test_frontend_settings_need_no_token_and_hold_no_secret(start_service):
    user = {"enabled": True, "client_id": "app", "realm_url": "http://127.0.0.1:9/realms/app"}
    # With a shared secret there is no place to sign in at: the realm only names the issuer.
    for security, realm_url in (({"user": user}, user["realm_url"]), (SECURITY | {"user": user}, None)):
        async with start_service(security=security, limits={"max_message_chars": 500}) as service:
            path = f"{BASE}/config/frontend_settings"
            response = await service.http.get(path, headers={"Authorization": ""})
            assert response.status == 200
            settings = await response.json()
        assert settings["user_auth"] == user | {"realm_url": realm_url}
        assert settings["limits"]["max_message_chars"] == 500
        assert "thirty-two" not in str(settings)


async def test_permissions_are_what_the_routes_allow(service):
    permissions = await service.get("/config/permissions")
    assert permissions == sorted(permissions)
    assert {"sessions:create", "sessions:delete", "feedback:create", "agents:read"} <= set(permissions)
    assert not {"agents:create", "agents:update", "agents:delete"} & set(permissions)


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_agents_come_from_the_configuration(start_service, method, path):
    """Whatever the body says, and whoever asks."""
    async with start_service(security=SECURITY) as service:
        body = {"name": "Mallory", "type": "agent", "class_path": "os"}
        options = {"json": body, "headers": headers_of("ann")}
        async with service.http.request(method, BASE + path, **options) as response:
            assert response.status == 403
            assert "configuration file alone (ai." in (await response.json())["detail"]
        async with service.http.get(f"{BASE}/agents", headers=headers_of("ann")) as response:
            assert [agent["id"] for agent in await response.json()] == ["Georges"]
