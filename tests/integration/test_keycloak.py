"""Who a real Keycloak lets in: its users, with tokens of our client, for as long as those last and its keys hold."""

import asyncio

import jwt
import pytest

from agentic_backend.app import Parts
from backend_kit.auth import KeyWaits
from tests.support.keycloak import Administrator, claims_of, security_of, tokens_of
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, hear, hear_until, say

# The first of them waits for Keycloak's start, on a new machine also for its download.
pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

PATIENT = Parts(keys=KeyWaits(cool_down_s=0.0, fetch_s=PATIENCE_S, find_s=PATIENCE_S, start_s=PATIENCE_S))


async def status_of(service, token, path="/chatbot/sessions"):
    async with service.http.get(BASE + path, headers={"Authorization": f"Bearer {token}"}) as response:
        return response.status, await response.json()


async def close_code_of(socket):
    async with asyncio.timeout(PATIENCE_S):
        await socket.wait_closed()
    return socket.close_code


async def test_its_users_ask_and_see_what_is_theirs(keycloak, start_service):
    async with start_service(security=security_of(keycloak), parts=PATIENT) as service:
        ada, bob = [(await tokens_of(keycloak, user))["access_token"] for user in ("ada", "bob")]
        headers = {"Authorization": f"Bearer {ada}"}
        async with service.http.post(f"{BASE}/chatbot/session", json={}, headers=headers) as response:
            session = await response.json()
        assert session["user_id"] == claims_of(ada)["sub"]
        async with service.native(ada) as socket:
            await say(socket, type="ask", session_id=session["id"], agent_id="Georges", message="Hello")
            await hear_until(socket, "final")
        history = f"/chatbot/session/{session['id']}/history"
        assert [message["role"] for message in (await status_of(service, ada, history))[1]] == ["user", "assistant"]
        assert await status_of(service, bob, history) == await status_of(
            service, bob, "/chatbot/session/AAAAAAAAAAA/history"
        )
        identity = await service.instances[0]._verifier.verify(ada)
        assert (identity.username, identity.email, identity.groups) == ("ada", "ada@example.org", ("/staff",))
        assert identity.roles == {"user", "operator"}
        async with service.http.get(f"{BASE}/ready") as response:
            assert (await response.json())["dependencies"]["identity_provider"] == {"status": "up"}


async def test_no_other_token_of_the_realm_opens_the_door(keycloak, start_service):
    async with start_service(security=security_of(keycloak), parts=PATIENT) as service:
        ada = await tokens_of(keycloak, "ada")
        other = await tokens_of(keycloak, "ada", client="other")
        invalid = (401, {"detail": "Invalid token"})
        for token in (other["access_token"], ada["id_token"], ada["refresh_token"]):
            assert await status_of(service, token) == invalid
            async with service.native(token) as socket:
                assert await close_code_of(socket) == 4401
        assert (await status_of(service, ada["access_token"]))[0] == 200


@pytest.mark.parametrize("mark", ["Bearer", "at+jwt"])
async def test_its_access_tokens_show_the_mark_and_its_other_tokens_do_not(keycloak, start_service, mark):
    async with (
        start_service(security=security_of(keycloak, mark), parts=PATIENT) as service,
        Administrator(keycloak) as admin,
    ):
        unmarked = await tokens_of(keycloak, "ada")
        await admin.mark_tokens(by_header=True)
        both = await tokens_of(keycloak, "ada")
        assert jwt.get_unverified_header(both["access_token"])["typ"] == "at+jwt"
        assert (await status_of(service, both["access_token"]))[0] == 200
        assert (await status_of(service, unmarked["access_token"]))[0] == (200 if mark == "Bearer" else 401)
        for token in (both["id_token"], both["refresh_token"], unmarked["id_token"], unmarked["refresh_token"]):
            assert (await status_of(service, token))[0] == 401


async def test_a_socket_ends_with_its_token_unless_a_newer_one_comes(keycloak, start_service):
    async with (
        start_service(security=security_of(keycloak), parts=PATIENT) as service,
        Administrator(keycloak) as admin,
    ):
        first, bob = await tokens_of(keycloak, "ada"), await tokens_of(keycloak, "bob")
        newer = await tokens_of(keycloak, "ada", refresh_token=first["refresh_token"])
        await admin.let_tokens_last(10)
        short = await tokens_of(keycloak, "ada")
        async with service.native(short["access_token"]) as ending, service.native(short["access_token"]) as renewed:
            await say(renewed, type="auth", access_token=newer["access_token"])
            await say(renewed, type="auth", access_token=bob["access_token"])
            assert (await hear(renewed))["code"] == "unauthenticated"
            assert await close_code_of(ending) == 4401
            await say(renewed, type="ping")
            assert await hear(renewed) == {"type": "pong"}


async def test_a_new_key_works_at_once_and_the_one_before_it_still_does(keycloak, start_service):
    starting = start_service(security=security_of(keycloak), parts=PATIENT)
    async with starting as service, Administrator(keycloak) as admin:
        before = (await tokens_of(keycloak, "eve"))["access_token"]
        assert (await status_of(service, before))[0] == 200
        await admin.rotate("rotated")
        after = (await tokens_of(keycloak, "bob"))["access_token"]
        assert (await status_of(service, after))[0] == 200
        again = (await tokens_of(keycloak, "eve"))["access_token"]
        assert [(await status_of(service, token))[0] for token in (before, again)] == [200, 200]
