"""The page in French, against the real service: of the English catalogues no word is left in what it shows."""

import re
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, Route, expect

from tests.browser.conftest import PATIENCE_MS, Chromium
from tests.browser.test_conversations import talk
from tests.support.service import RunningService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

NOTE = "(globalThis.catalogues ??= []).push(texts);"
SHOWN = """() => {
    const said = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        said.add(walker.currentNode.data.trim());
    }
    for (const name of ["aria-label", "title", "placeholder", "alt"]) {
        for (const node of document.querySelectorAll(`[${name}]`)) {
            said.add(node.getAttribute(name).trim());
        }
    }
    said.add(document.title);
    return [...said].filter((text) => text !== "");
}"""
PAYLOAD = {
    "checkpoint_id": "c",
    "questions": [
        {"id": "1", "action_requests": [{"name": "note", "args": {}}]},
        {"id": "2", "question": "Lequel ?", "choices": [{"id": "a", "label": "Un"}], "free_text": True},
        {"id": "3", "question": "Pourquoi ?"},
    ],
}


@pytest_asyncio.fixture(loop_scope="module")
async def context(chromium: Chromium) -> Any:
    """A profile whose languages are French, then English."""
    made: BrowserContext = await chromium.new_context(
        viewport={"width": 1200, "height": 800}, reduced_motion="reduce", locale="fr-FR"
    )
    made.set_default_timeout(PATIENCE_MS)
    yield made
    await made.close()


async def note_catalogues(page: Page) -> None:
    """Has each catalogue of the page leave its texts where `english` reads them."""

    async def with_note(route: Route) -> None:
        response = await route.fetch()
        body = await response.text()
        place = "  const own = texts[language];"
        assert place in body
        await route.fulfill(response=response, body=body.replace(place, NOTE + place))

    await page.route("**/web/i18n.js", with_note)


async def left_in_english(page: Page) -> list[str]:
    """What the page shows that only its English catalogues have.

    "Source 2 : A" is of the French "Source {number} : {title}", though the English one, without that space, fits, too.
    """
    catalogues = await page.evaluate("globalThis.catalogues")
    assert len(catalogues) > 8
    english, french = ({text for one in catalogues for text in texts(one[language])} for language in ("en", "fr"))
    foreign, own = (
        [re.compile(pattern(text)) for text in of if letters(text)] for of in (english - french, french - english)
    )
    return [said for said in await page.evaluate(SHOWN) if fits(said, foreign) and not fits(said, own)]


def fits(said: str, forms: list[re.Pattern[str]]) -> bool:
    return any(form.fullmatch(said) for form in forms)


def texts(catalogue: dict[str, Any]) -> list[str]:
    return [text for one in catalogue.values() for text in (one.values() if isinstance(one, dict) else [one])]


def letters(text: str) -> bool:
    return re.search("[A-Za-z]{2}", re.sub(r"\{\w+\}", "", text)) is not None


def pattern(text: str) -> str:
    return ".+".join(re.escape(part) for part in re.split(r"\{\w+\}", text.strip()))


async def test_no_english_is_left_in_french(page: Page, service: RunningService) -> None:
    await note_catalogues(page)
    session_id = await talk(service, "Lentilles", "Combien de temps cuisent les lentilles ?")
    url = f"http://127.0.0.1:{service.port}/"
    await page.goto(url)
    await expect(page.get_by_role("heading", name="Que souhaitez-vous savoir ?")).to_be_visible()
    await expect(page.locator("html")).to_have_attribute("lang", "fr")
    await expect(page.locator("#connection")).to_have_text("Connecté")
    assert await left_in_english(page) == []
    await page.goto(f"{url}#/c/{session_id}")
    await expect(page.locator(".question")).to_be_visible()
    assert await left_in_english(page) == []
    await page.goto(f"{url}#/settings")
    await page.get_by_role("button", name="Nouvelle clé").click()
    assert await left_in_english(page) == []
    await page.get_by_role("button", name="Créer la clé").click()
    await expect(page.get_by_role("alert").filter(has_text="Donnez-lui un nom.")).to_be_visible()
    await page.get_by_role("textbox", name="Nom").fill("k")
    await page.get_by_role("button", name="Créer la clé").click()
    await expect(page.get_by_role("button", name="Terminé")).to_be_visible()
    assert await left_in_english(page) == []
    await page.get_by_role("button", name="Terminé").click()
    await page.get_by_role("button", name="Révoquer k").click()
    assert await left_in_english(page) == []
    await page.get_by_role("dialog").get_by_role("button", name="La garder").click()
    await page.get_by_role("button", name="Tout supprimer").click()
    assert await left_in_english(page) == []


async def test_failures_and_the_connection_are_told_in_french(page: Page, service: RunningService) -> None:
    await note_catalogues(page)
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator("#connection")).to_have_text("Connecté")
    await page.route("**/chatbot/sessions**", lambda route: route.abort())
    await page.get_by_label("Rechercher dans vos conversations").fill("lentilles")
    await expect(page.locator("#notice")).to_contain_text("Le service ne répond pas")
    await expect(page.locator("#notice").get_by_role("button", name="Réessayer")).to_be_visible()
    assert await left_in_english(page) == []


async def test_a_question_to_a_person_is_asked_in_french(page: Page, service: RunningService) -> None:
    await note_catalogues(page)
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator("#connection")).to_have_text("Connecté")
    script = """async (payload) => {
        const { humanCard } = await import("/web/hitl.js");
        document.querySelector("#welcome").append(humanCard(payload, () => {}).node);
    }"""
    await page.evaluate(script, PAYLOAD)
    await expect(page.get_by_role("heading", name="L'agent vous pose 3 questions")).to_be_visible()
    await page.get_by_role("button", name="Envoyer les réponses").click()
    await expect(page.get_by_text("Écrivez une réponse.")).to_be_visible()
    assert await left_in_english(page) == []


async def test_numbers_and_moments_follow_the_language(page: Page, service: RunningService) -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/")
    script = """async () => {
        const { duration, moment } = await import("/web/format.js");
        const now = new Date("2026-03-04T12:00:00Z");
        return [duration(3020), moment("2026-03-04T11:59:50Z", now), moment("2026-03-04T11:55:00Z", now)];
    }"""
    assert await page.evaluate(script) == ["3,02 s", "à l'instant", "il y a 5 minutes"]
