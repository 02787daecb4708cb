"""Each state of the page: axe-core finds nothing wrong with it, in both themes, on a desktop and on a phone.

On phones of 390 and of 320 px every control is large enough for a finger, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import Page, Route, expect

from tests.agentic_backend.records import turn
from tests.browser.axe import violations
from tests.browser.conftest import PATIENCE_MS, Chromium
from tests.browser.fake_server import GEORGES, FakeServer
from tests.browser.targets import small_targets
from tests.browser.test_conversations import talk
from tests.browser.test_human import APPROVAL, WORDS, stored
from tests.browser.test_languages import left_in_english, note_catalogues
from tests.browser.test_libraries import BEES, PUMPS, create, file, row, upload
from tests.browser.test_share import NOWHERE, SOURCE
from tests.browser.test_sources import QUESTION, ask_rico, documents, knowledge, library
from tests.support.people import SECURITY, headers_of
from tests.support.ports import free_port
from tests.support.service import BASE, RunningService

__all__ = ["documents", "knowledge", "library"]

pytestmark = [pytest.mark.chromium, pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

THEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
PHONE: dict[str, Any] = {"has_touch": True, "is_mobile": True}
SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 844}, **PHONE},
    "narrow phone": {"viewport": {"width": 320, "height": 640}, **PHONE},
}
Look = Callable[[str], Awaitable[None]]
"""Looks at the state of the page that has this name."""
CALLS = {
    "title": "May I?",
    "action_requests": [{"name": "note", "args": {"text": "milk"}, "description": "Writes a note."}],
    "review_configs": [{"action_name": "note", "allowed_decisions": ["approve", "edit", "reject", "respond"]}],
    "checkpoint_id": "c3",
}
SEVERAL = {
    "questions": [
        {"id": "a", "title": "Size?", "choices": APPROVAL["choices"], "free_text": True},
        {"id": "b", **CALLS},
    ],
    "checkpoint_id": "c4",
}


async def wrong_in(
    chromium: Chromium, shots: Path, walk: Callable[[Page, Look, str], Awaitable[None]], language: str = "en-US"
) -> dict[str, list[str]]:
    """What is wrong in the states that a walk over the page comes to, by theme, size and state; {} where nothing is.

    `walk(page, look, size)` calls `look(state)` in each of them. A picture of each is left in `shots`.
    """
    found: dict[str, list[str]] = {}
    for size, options in SIZES.items():
        context = await chromium.new_context(**options, reduced_motion="reduce", bypass_csp=True, locale=language)
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()

        async def look(state: str, page: Page = page, size: str = size) -> None:
            for theme in THEMES if size != "narrow phone" else THEMES[:1]:
                await page.emulate_media(color_scheme=theme)
                name = f"{theme} {size} {state}"
                await page.screenshot(path=shots / f"{name}.png")
                found[name] = await violations(page)
            if size != "desktop":
                found[f"{size} {state}: small"] = await small_targets(page)

        try:
            await walk(page, look, size)
        finally:
            await context.close()
    return {state: wrong for state, wrong in found.items() if wrong}


def url_of(service: RunningService, address: str = "") -> str:
    return f"http://127.0.0.1:{service.port}/{address}"


async def test_nothing_is_wrong_with_a_conversation_and_the_documents_that_it_cites(chromium, library, tmp_path):
    service, _ = library

    async def walk(page: Page, look: Look, size: str) -> None:
        await page.goto(url_of(service))
        await expect(page.get_by_text("What would you like to know?")).to_be_visible()
        await look("welcome")
        await ask_rico(page, service)
        await look("sources")
        await page.locator(".sources-more summary").click()
        await look("unfolded")
        held: asyncio.Queue[Route] = asyncio.Queue()
        await page.route("**/markdown", held.put)
        await page.route("**/chunks/*", lambda route: route.abort())
        await page.locator("button.citation").first.click()
        route = await held.get()
        await expect(page.locator("#reader-state")).to_have_text("Opening the document…")
        await look("a document that is being read")
        await route.abort()
        await page.unroute_all()
        await expect(page.locator("#reader-state").get_by_role("button", name="Try again")).to_be_visible()
        await look("a document that could not be read")
        await page.locator("#reader-state button").click()
        await expect(page.locator("#reader mark").first).to_be_visible()
        await look("reader")
        await page.keyboard.press("Escape")
        if size != "desktop":
            await page.get_by_role("button", name="Conversations").click()
            await expect(page.locator("#sidebar")).to_be_visible()
            await look("drawer")

    assert await wrong_in(chromium, tmp_path, walk) == {}


@pytest.mark.parametrize(
    "payload", [APPROVAL, WORDS, CALLS, SEVERAL], ids=["choices", "words", "a call", "several questions"]
)
async def test_nothing_is_wrong_with_what_an_agent_asks(chromium, fake: FakeServer, payload, tmp_path):
    fake.add_session("s", "A talk", stored(payload))

    async def walk(page: Page, look: Look, _size: str) -> None:
        await page.goto(f"{fake.url}#/c/s")
        await fake.peer()
        await expect(page.locator(".human")).to_be_visible()
        await look("asked")

    assert await wrong_in(chromium, tmp_path, walk) == {}


async def answered(page: Page, question: str) -> None:
    """Asks, and waits for the whole answer."""
    before = await page.locator(".turn").count()
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn")).to_have_count(before + 1)
    await expect(page.locator(".turn").last).to_have_attribute("data-status", "done")


async def test_nothing_is_wrong_with_turns_and_what_opens_from_them(chromium, library, tmp_path):
    service, _ = library

    async def walk(page: Page, look: Look, _size: str) -> None:
        await page.goto(url_of(service))
        await expect(page.locator("#connection")).to_have_text("Connected")
        # Two answers with all that stands under them open, so that nothing of the one has the name of the other.
        await answered(page, "one")
        await answered(page, "two")
        for number in range(2):
            await page.locator(".ledger summary").nth(number).click()
        await look("turns")
        await page.get_by_role("button", name="Another answer").last.click()
        await expect(page.locator(".version")).to_have_text("2 of 2")
        await expect(page.locator(".turn").last).to_have_attribute("data-status", "done")
        await page.get_by_role("button", name="Bad answer").last.click()
        await page.get_by_role("button", name="Edit question").last.click()
        await look("versions, a rating and an edit")
        await page.keyboard.press("Escape")
        await page.locator("#share").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Make a link").click()
        await expect(dialog.get_by_role("button", name="Revoke the link")).to_be_visible()
        await look("share")
        await page.keyboard.press("Escape")
        await page.keyboard.press("Control+k")
        await expect(page.locator("#switcher")).to_be_visible()
        await look("switcher")
        await page.keyboard.press("Escape")
        await page.goto(url_of(service, "#/"))
        await page.locator("#agent").select_option("Rico")
        await page.locator("#scope").click()
        await expect(page.get_by_role("dialog").get_by_role("checkbox").nth(2)).to_be_visible()
        await look("scope")

    assert await wrong_in(chromium, tmp_path, walk) == {}


PLACES = {
    "usage": "In total",
    "live": "What limits the service",
    "feedback": "What people say of answers",
    "settings": "My data",
}


async def test_nothing_is_wrong_with_the_views_beside_conversations_while_they_are_empty(chromium, service, tmp_path):
    async def walk(page: Page, look: Look, _size: str) -> None:
        for place, words in PLACES.items():
            await page.goto(url_of(service, f"#/{place}"))
            await expect(page.locator("#place")).to_contain_text(words)
            await look(place)
        await page.goto(url_of(service, "#/live/turn/unknown"))
        await expect(page.get_by_text("No instance knows this turn")).to_be_visible()
        await look("an unknown turn")
        await page.goto(url_of(service, "#/libraries"))
        await expect(page.locator("#notice")).to_be_visible()
        await look("libraries that cannot be read")

    assert await wrong_in(chromium, tmp_path, walk) == {}


async def test_nothing_is_wrong_with_the_views_beside_conversations_and_with_their_dialogs(chromium, service, tmp_path):
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    rating = {"rating": 1, "reason": "not_true", "comment": "No.", "messageId": "1", "sessionId": session_id}
    async with service.http.post(f"{BASE}/chatbot/feedback", json={**rating, "agentName": "Georges"}) as response:
        assert response.status == 204
    await service.flush()

    async def walk(page: Page, look: Look, _size: str) -> None:
        for place, words in PLACES.items():
            await page.goto(url_of(service, f"#/{place}"))
            await expect(page.locator("#place")).to_contain_text(words)
            for summary in await page.locator("#place .values > summary").all():
                await summary.click()
            await look(place)
        await page.get_by_role("button", name="New key").click()
        form = page.get_by_role("form", name="New key")
        await form.get_by_role("button", name="Make the key").click()
        await look("a new key without a name")
        await form.get_by_label("Name", exact=True).fill("One")
        await form.get_by_role("button", name="Make the key").click()
        await expect(page.get_by_role("textbox", name="The key")).to_be_visible()
        await look("a key")
        await page.get_by_role("button", name="Done").click()
        await page.get_by_role("button", name="Revoke One").click()
        await look("a key to be revoked")
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await expect(page.locator(".key.ended").first).to_be_visible()
        await look("a revoked key")
        await page.get_by_role("button", name="Delete everything").click()
        await look("everything to be deleted")
        await page.keyboard.press("Escape")
        await page.goto(url_of(service, f"#/live/turn/{session_id}-e1"))
        await expect(page.locator(".ledger tbody th").first).to_be_visible()
        await look("the ledger of a turn")

    assert await wrong_in(chromium, tmp_path, walk) == {}


async def test_nothing_is_wrong_with_libraries_and_their_dialogs(chromium, library, tmp_path):
    service, _ = library

    async def walk(page: Page, look: Look, size: str) -> None:
        await create(page, service, f"Papers, {size}")
        await look("an empty library")
        held: asyncio.Queue[Route] = asyncio.Queue()
        await page.route("**/upload-process-documents", held.put)
        await upload(page, file("pumps.md", PUMPS), file("bees.md", BEES), file("disk.bin", b"\x00"))
        routes = [await held.get() for _ in range(3)]
        await look("uploads that run")
        for route in routes:
            await route.continue_()
        await page.unroute("**/upload-process-documents")
        await expect(page.get_by_text("3 of 3 done, 1 refused")).to_be_visible()
        await upload(page, file("broken.pdf", "%PDF-1.7 and nothing of one"))
        await expect(row(page, "broken.pdf")).to_contain_text("Failed")
        await expect(row(page, "pumps.md")).to_contain_text("Ready")
        await look("uploads that ended")
        for name, button in {
            "to be renamed": page.get_by_role("button", name="Rename"),
            "to be deleted": page.get_by_role("button", name="Delete", exact=True),
            "a document to be moved": page.get_by_role("button", name="Move bees.md"),
            "a document to be deleted": page.get_by_role("button", name="Delete bees.md"),
        }.items():
            await button.click()
            await expect(page.get_by_role("dialog")).to_be_visible()
            await look(name)
            await page.keyboard.press("Escape")
        await page.get_by_label("Part of a name").fill("nothing of the kind")
        await expect(page.get_by_text("No document fits.")).to_be_visible()
        await look("no document")
        await page.get_by_role("searchbox", name="Question").fill("How often is the filter rinsed?")
        await page.keyboard.press("Enter")
        await expect(page.locator(".hits > li").first).to_be_visible()
        await page.locator(".why summary").first.click()
        await expect(page.get_by_text("By its words").first).to_be_visible()
        await look("what a search found")
        await page.get_by_role("link", name="All libraries").click()
        await expect(page.get_by_role("link", name="Turnwise")).to_be_visible()
        await look("libraries")
        await page.get_by_label("Name of the new library").fill("Turnwise")
        await page.keyboard.press("Enter")
        await expect(page.locator("#notice")).to_be_visible()
        await look("a name that is taken")
        # Who reads it is asked where people sign in.
        settings = await service.get("/config/frontend_settings")
        told = {**settings, "user_auth": {"enabled": True}}
        await page.route("**/config/frontend_settings", lambda route: route.fulfill(json=told))
        await page.reload()
        await page.get_by_role("link", name="Turnwise").click()
        await page.locator(".libraries").get_by_role("button", name="Share").click()
        await look("to be shared")

    assert await wrong_in(chromium, tmp_path, walk) == {}


async def test_nothing_is_wrong_with_a_shared_conversation(chromium, start_service, tmp_path):
    async with start_service(security={**SECURITY, "public_links": True}) as service:
        ann = headers_of("ann")
        off = {"user_auth": {"enabled": False}}
        persistence = service.instances[0].running.persistence
        async with service.http.post(f"{BASE}/chatbot/session", json={"title": "Open"}, headers=ann) as response:
            session = await persistence.store.get((await response.json())["id"], "ann")
        assert session is not None
        metadata: dict[str, Any] = {"agent_id": "Georges", "sources": [SOURCE]}
        said = "It is so [1].\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 [1] |"
        await persistence.log.append(turn(session, "x0", "Is it?", said, metadata=metadata))

        async def walk(page: Page, look: Look, _size: str) -> None:
            for audience, way in {"anybody": "public/", "signed_in": ""}.items():
                path, wanted = f"{BASE}/chatbot/session/{session.id}/share", {"audience": audience}
                async with service.http.post(path, json=wanted, headers=ann) as response:
                    link = await response.json()
                if audience == "signed_in":  # as one who is signed in sees it
                    await page.set_extra_http_headers(headers_of("ben"))
                    await page.route("**/config/frontend_settings", lambda route: route.fulfill(json=off))
                await page.goto("about:blank")
                await page.goto(url_of(service, f"#/s/{way}{link['token']}"))
                await expect(page.locator("#place .answer")).to_contain_text("It is so")
                await look(f"shared with {audience}")
                await page.locator("#place .citation").first.click()
                await expect(page.locator("dialog.passage")).to_be_visible()
                await look(f"a passage, shared with {audience}")
                async with service.http.delete(f"{path}/{link['id']}", headers=ann) as response:
                    assert response.status == 204
                await page.reload()
                await expect(page.locator("#place")).to_have_text(NOWHERE)
                await look(f"revoked, shared with {audience}")

        assert await wrong_in(chromium, tmp_path, walk) == {}


async def test_nothing_is_wrong_when_something_goes_wrong(chromium, fake: FakeServer, tmp_path):
    fake.agents = [{**GEORGES, "chat_options": {"attach_files": True}}]

    async def walk(page: Page, look: Look, _size: str) -> None:
        await page.goto(fake.url)
        peer = await fake.peer()
        await page.get_by_label("Your message").fill("Why?")
        await page.keyboard.press("Enter")
        told = await fake.told(peer)
        await told.begin()
        await told.delta("The part before")
        await look("an answer that comes")
        failure = {"code": "llm_timeout", "message": "The model did not answer in time.", "retryable": True}
        await told.say("error", **failure, partial=True)
        await expect(page.locator(".error")).to_contain_text("choose another model")
        await look("a failed answer")
        await page.get_by_role("button", name="Try again").click()
        again = await fake.told(peer)
        refusal = {"code": "overloaded", "message": "The service is overloaded.", "retryable": True}
        await again.refuse(**refusal, retry_after_ms=600_000)
        await expect(page.get_by_role("button", name="Try again in")).to_be_visible()
        await look("a refused question")
        arrives = asyncio.Event()

        async def hold(route: Route) -> None:
            await arrives.wait()
            await route.continue_()

        await page.route("**/chatbot/upload", hold)
        await page.set_input_files(
            "#attach-input",
            [{"name": f"a.{ending}", "mimeType": "", "buffer": b"x"} for ending in ("md", "exe", "txt")],
        )
        await expect(page.locator("#attachments").get_by_text("waiting").first).to_be_visible()
        await look("files on their way")
        arrives.set()
        await expect(page.locator("#attachments").get_by_role("alert").first).to_be_visible()
        await look("refused files")
        # One socket is refused after the other.
        await page.route_web_socket("**/query/ws", lambda socket: socket.close(code=1013))
        await peer.close(1012)
        await expect(page.locator("#connection-banner")).to_be_visible()
        await look("without a connection")

    assert await wrong_in(chromium, tmp_path, walk) == {}


async def test_nothing_is_wrong_with_the_list_of_conversations(chromium, fake: FakeServer, tmp_path):
    for number in range(3):
        fake.add_session(f"s{number}", f"A talk of {number}")

    async def walk(page: Page, look: Look, size: str) -> None:
        await page.goto(fake.url)
        if size != "desktop":
            await page.get_by_role("button", name="Conversations").click()
        button = page.get_by_role("button", name="Options of A talk of 1")
        await button.click()
        await expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
        await look("the menu of a row")
        await page.get_by_role("menuitem", name="Rename").click()
        await expect(page.get_by_label("Title of the conversation")).to_be_focused()
        await look("a row to be renamed")
        await page.keyboard.press("Escape")
        await button.click()
        await page.get_by_role("menuitem", name="Delete").click()
        await expect(page.locator("#undo")).to_be_visible()
        await look("a delete that can be undone")
        await page.get_by_role("button", name="Undo").click()
        await page.route("**/chatbot/sessions?*", lambda route: route.fulfill(json=[]))
        await page.get_by_label("Search your conversations").fill("nothing of the kind")
        await expect(page.locator("#nothing-found")).to_be_visible()
        await look("nothing found")
        hit = {**fake.sessions["s1"], "match": {"rank": 0, "text": "of the kind"}}
        await page.unroute("**/chatbot/sessions?*")
        await page.route("**/chatbot/sessions?*", lambda route: route.fulfill(json=[hit]))
        await page.get_by_label("Search your conversations").fill("of the kind")
        await expect(page.locator(".session")).to_have_count(1)
        await look("something found")

    assert await wrong_in(chromium, tmp_path, walk) == {}


async def test_nothing_is_wrong_before_somebody_has_signed_in(chromium, start_service, tmp_path):
    realm_url = f"http://127.0.0.1:{free_port()}/realms/nobody"
    user = {"enabled": True, "client_id": "turnwise", "realm_url": realm_url}
    async with start_service(security={"user": user}) as service:

        async def walk(page: Page, look: Look, _size: str) -> None:
            await page.goto(url_of(service))
            await expect(page.locator("#notice")).to_contain_text("The sign-in service does not answer")
            await look("no sign-in")
            known = {"issuer": realm_url, "authorization_endpoint": realm_url, "token_endpoint": realm_url}
            await page.route("**/.well-known/openid-configuration", lambda route: route.fulfill(json=known))
            await page.goto(url_of(service, "#state=nobodys&error=access_denied"))
            await page.reload()
            await expect(page.get_by_role("button", name="Sign in")).to_be_visible()
            await look("refused")

        assert await wrong_in(chromium, tmp_path, walk) == {}


async def test_nothing_is_wrong_in_french(chromium, service, tmp_path):
    session_id = await talk(service, "Cuisine", "Combien de temps ?")

    async def walk(page: Page, look: Look, _size: str) -> None:
        await page.goto(url_of(service))
        await expect(page.get_by_role("heading", name="Que souhaitez-vous savoir ?")).to_be_visible()
        await look("welcome")
        await page.goto(url_of(service, f"#/c/{session_id}"))
        await page.locator(".ledger summary").click()
        await look("a turn")
        for place in PLACES:
            await page.goto(url_of(service, f"#/{place}"))
            await expect(page.locator("#place h2").first).to_be_visible()
            await look(place)

    assert await wrong_in(chromium, tmp_path, walk, "fr-FR") == {}


async def test_nothing_is_wrong_with_dialogs_in_french(chromium, library, tmp_path):
    service, _ = library

    async def walk(page: Page, look: Look, size: str) -> None:
        await note_catalogues(page)
        dialog = page.get_by_role("dialog")

        async def look_at(name: str, state: str) -> None:
            await expect(dialog.get_by_role("heading", name=name)).to_be_visible()
            await look(state)
            assert await left_in_english(page) == []
            await page.keyboard.press("Escape")

        await page.goto(url_of(service))
        await page.locator("#agent").select_option("Rico")
        await page.locator("#scope").click()
        await expect(dialog.get_by_role("checkbox").nth(2)).to_be_visible()
        await look_at("Où chercher", "scope")
        await page.get_by_label("Votre message").fill(QUESTION)
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn")).to_have_attribute("data-status", "done")
        await page.get_by_role("button", name="Mauvaise réponse").click()
        await expect(page.get_by_role("group", name="Qu'est-ce qui ne va pas dans cette réponse ?")).to_be_visible()
        await look("a rating")
        assert await left_in_english(page) == []
        await page.locator("#share").click()
        await dialog.get_by_role("button", name="Créer un lien").click()
        await expect(dialog.get_by_role("button", name="Révoquer le lien")).to_be_visible()
        await look_at("Partager cette conversation", "share")
        await page.keyboard.press("Control+k")
        await expect(page.locator("#switcher")).to_be_visible()
        await look("switcher")
        assert await left_in_english(page) == []
        await page.keyboard.press("Escape")
        await page.locator("button.citation").first.click()
        await expect(page.locator("#reader mark").first).to_be_visible()
        await look("reader")
        await page.keyboard.press("Escape")

        await page.goto(url_of(service, "#/libraries"))
        await page.get_by_label("Nom de la nouvelle bibliothèque").fill(f"Notices, {size}")
        await page.get_by_role("button", name="Créer la bibliothèque").click()
        await upload(page, file("pumps.md", PUMPS))
        await expect(row(page, "pumps.md")).to_contain_text("Prêt")
        for name, button in {
            "Renommer cette bibliothèque": page.get_by_role("button", name="Renommer"),
            "Supprimer cette bibliothèque ?": page.get_by_role("button", name="Supprimer", exact=True),
            "Déplacer vers une autre bibliothèque": page.get_by_role("button", name="Déplacer pumps.md"),
            "Supprimer ce document ?": page.get_by_role("button", name="Supprimer pumps.md"),
        }.items():
            await button.click()
            await look_at(name, name)

        await page.goto(url_of(service, "#/settings"))
        await page.get_by_role("button", name="Nouvelle clé").click()
        form = page.get_by_role("form", name="Nouvelle clé")
        await form.get_by_label("Nom", exact=True).fill("Une")
        await form.get_by_role("button", name="Créer la clé").click()
        await expect(page.get_by_role("textbox", name="La clé")).to_be_visible()
        await look("a key")
        assert await left_in_english(page) == []
        await page.get_by_role("button", name="Terminé").click()
        await page.get_by_role("button", name="Révoquer Une").click()
        await look_at("Révoquer cette clé ?", "a key to be revoked")
        await page.get_by_role("button", name="Révoquer Une").click()
        await dialog.get_by_role("button", name="Révoquer").click()
        # The list is drawn anew with the answer, and what stands below it moves away from a click.
        await expect(page.get_by_text("La clé « Une » est révoquée.")).to_be_visible()
        await page.get_by_role("button", name="Tout supprimer").click()
        await look_at("Supprimer toutes vos données ?", "everything to be deleted")

    assert await wrong_in(chromium, tmp_path, walk, "fr-FR") == {}
