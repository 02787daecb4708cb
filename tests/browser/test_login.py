"""A person who signs in at a real Keycloak: there and back, a token that ends, a session that ends, and the way out."""

from contextlib import asynccontextmanager

import pytest
from playwright.async_api import expect

from tests.support.keycloak import Administrator, security_of
from tests.support.ports import free_port

# The first of them may wait for Keycloak's start, on a new machine also for its download.
pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@asynccontextmanager
async def signed_up(keycloak, start_service, model="mock"):
    """A service whose page Keycloak knows, and the administrator of its realm."""
    running = start_service(model=model, security=security_of(keycloak))
    async with running as service, Administrator(keycloak) as admin:
        await admin.let_page_in(f"http://127.0.0.1:{service.port}")
        yield service, admin


@pytest.fixture
def unused_realm():
    """The section `security` for a realm at an address where nobody is."""
    realm_url = f"http://127.0.0.1:{free_port()}/realms/nobody"
    return {"user": {"enabled": True, "client_id": "turnwise", "realm_url": realm_url}}


async def sign_in(page, user):
    await page.locator("#username").fill(user)
    await page.locator("#password").fill(user)
    await page.locator("#kc-login").click()


async def ask(page, text):
    await page.get_by_label("Your message").fill(text)
    await page.keyboard.press("Enter")


@pytest.mark.java
async def test_who_is_signed_in_on_the_chat_page_reads_the_documentation(page, context, keycloak, start_service):
    async with signed_up(keycloak, start_service) as (service, _admin):
        await page.goto(f"http://127.0.0.1:{service.port}/docs")
        async with context.expect_page() as opened:
            await page.get_by_role("link", name="Sign in on the chat page").click()
        chat = await opened.value
        await sign_in(chat, "ada")
        await expect(page.get_by_role("heading", name="Turnwise agentic service")).to_be_visible()
        # One that is opened later asks the chat page.
        later = await context.new_page()
        await later.goto(f"http://127.0.0.1:{service.port}/docs")
        await expect(later.get_by_role("heading", name="Turnwise agentic service")).to_be_visible()


@pytest.mark.java
async def test_a_person_signs_in_asks_and_stays_while_tokens_come_and_go(page, keycloak, start_service):
    async with signed_up(keycloak, start_service, "mock;gap=20;tokens=800") as (service, admin):
        await admin.let_tokens_last(15)
        forms, frames = [], []
        page.on("request", lambda request: forms.append(request.post_data) if request.url.endswith("/token") else None)
        page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(str(frame))))
        await page.goto(f"http://127.0.0.1:{service.port}/#/c/AAAAAAAAAAA")
        await sign_in(page, "ada")
        await expect(page.locator("#person-name")).to_have_text("Ada Lovelace")
        assert page.url.endswith("/#/c/AAAAAAAAAAA"), "back where the person wanted to go, with no code in the address"
        assert "code_verifier=" in forms[0]
        await page.get_by_role("button", name="New conversation").first.click()

        await expect(page.locator("#connection")).to_have_text("Connected")
        (socket,) = service.service.running.hub._sockets
        first_ends_at = socket.principal.identity.expires_at
        await ask(page, "A long one")
        # The answer takes 16 s: it ends on the same socket, which by then has a newer token.
        await expect(page.locator(".ledger-facts")).to_contain_text("first token")
        assert tuple(service.service.running.hub._sockets) == (socket,)
        assert socket.principal.identity.username == "ada"
        assert socket.principal.identity.expires_at > first_ends_at
        assert all("grant_type=refresh_token" in form for form in forms[1:])
        assert not [frame for frame in frames if "refresh" in frame]
        assert "eyJ" not in await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")

        await admin.let_tokens_last(300)
        await page.reload()
        await expect(page.locator("#person-name")).to_have_text("Ada Lovelace")
        await expect(page.locator(".question")).to_have_text("A long one")


@pytest.mark.java
async def test_a_session_that_ends_is_said_and_the_conversation_stays(page, keycloak, start_service):
    async with signed_up(keycloak, start_service) as (service, admin):
        await admin.let_tokens_last(15)
        await page.goto(f"http://127.0.0.1:{service.port}/#state=nobodys&error=access_denied")
        await expect(page.locator("#notice")).to_contain_text("The sign-in did not succeed")
        await page.get_by_role("button", name="Sign in").click()
        await sign_in(page, "bob")
        await expect(page.locator("#connection")).to_have_text("Connected")
        await ask(page, "Hello")
        await expect(page.locator(".ledger-facts")).to_contain_text("first token")

        await admin.sign_out("bob")
        await expect(page.locator("#notice")).to_contain_text("You are signed out")
        await expect(page.locator(".question")).to_have_text("Hello")
        await page.get_by_role("button", name="Sign in").click()
        await sign_in(page, "bob")
        await expect(page.locator(".question")).to_have_text("Hello")
        await expect(page.locator("#connection")).to_have_text("Connected")

        addresses = []
        page.on("request", lambda request: addresses.append(request.url))
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.locator("#kc-login")).to_be_visible()
        assert any("/protocol/openid-connect/logout" in address for address in addresses)
        assert [address for address in addresses if "eyJ" in address] == [], "no token in an address, so in no history"
        assert "eyJ" not in await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")


async def test_a_sign_in_service_that_is_away_is_said(page, start_service, unused_realm):
    async with start_service(security=unused_realm) as service:
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await expect(page.locator("#notice")).to_contain_text("The sign-in service does not answer")
        await expect(page.get_by_role("button", name="Try again").first).to_be_visible()
