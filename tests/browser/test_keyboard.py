"""By keyboard alone through each view, against the real services: no mouse, and no focus that a script sets.

Every stop of Tab shows where the keyboard is, and nothing that is done leaves it nowhere.
"""

import pytest
from playwright.async_api import Locator, Page, expect

from tests.agentic_backend.records import turn
from tests.browser.test_builder import open_service
from tests.browser.test_conversations import talk
from tests.browser.test_libraries import PUMPS, file, knowledge, place
from tests.browser.test_share import SOURCE, made_link
from tests.browser.test_sources import QUESTION, documents, library
from tests.support.service import BASE, RunningService

__all__ = ["documents", "knowledge", "library", "open_service", "place"]

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

MOST_STOPS = 120
LOOK = """(node) => {
  const around = [node, node.parentElement, node.parentElement?.parentElement].filter((one) => one !== null);
  return around.map((one) => {
    const { outline, boxShadow, borderColor, backgroundColor, opacity, top } = getComputedStyle(one);
    return [outline, boxShadow, borderColor, backgroundColor, opacity, top].join();
  }).join();
}"""


class Keyboard:
    """A person who has a keyboard and nothing else."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.unseen: set[str] = set()

    async def press(self, *keys: str) -> None:
        """One key after the other."""
        for key in keys:
            await self.page.keyboard.press(key)

    async def type(self, text: str) -> None:
        """Into what has the focus."""
        await self.page.keyboard.type(text)

    async def somewhere(self) -> None:
        """The focus is not lost."""
        await expect(self.page.locator("body")).not_to_be_focused()

    async def to(self, target: Locator, key: str = "Tab") -> None:
        """Tab until it is there; each stop on the way looks otherwise than it does without the focus."""
        await expect(target).to_be_visible()
        await self.somewhere()
        if await target.evaluate("(node) => node === document.activeElement"):
            return
        for _ in range(MOST_STOPS):
            left = await self.page.evaluate_handle("document.activeElement")
            before = await left.evaluate(LOOK)
            await self.press(key)
            # The frame of the message box stays around what else is in it: there the caret shows it.
            stop = await left.evaluate(
                "(node) => node.isConnected && node.tabIndex >= 0 && node !== document.body && node.id !== 'message'"
            )
            if stop and await left.evaluate(LOOK) == before:
                self.unseen.add(await left.evaluate("(node) => node.outerHTML.slice(0, 200)"))
            if await target.evaluate("(node) => node === document.activeElement"):
                return
        raise AssertionError(f"no way to {target} by {key}")

    async def back_to(self, target: Locator) -> None:
        """By Shift and Tab."""
        await self.to(target, "Shift+Tab")

    async def enter(self, target: Locator) -> None:
        """Go there and press it."""
        await self.to(target)
        await self.press("Enter")

    async def choose(self, select: Locator, option: str) -> None:
        """Go to a list and along it by arrows."""
        await self.to(select)
        await self.press("Home")
        chosen = "(node) => node.selectedOptions[0].textContent"
        for _ in range(20):
            if await select.evaluate(chosen) == option:
                return
            await self.press("ArrowDown")
        raise AssertionError(f"no {option}")

    async def go(self, service: RunningService, view: str) -> None:
        """From a new page to one of its views, by the links beside the conversations."""
        await self.page.goto(f"http://127.0.0.1:{service.port}/")
        await expect(self.page.locator("#connection")).to_have_text("Connected")
        await self.enter(self.page.locator("#places").get_by_role("link", name=view))
        await expect(self.page.locator("#place")).to_be_focused()


@pytest.fixture
def keyboard(page: Page) -> Keyboard:
    return Keyboard(page)


async def saved(keyboard: Keyboard, button: Locator) -> str:
    """The name of the file that a button saves."""
    async with keyboard.page.expect_download() as downloading:
        await keyboard.enter(button)
    await keyboard.somewhere()
    return (await downloading.value).suggested_filename


async def test_a_library_from_its_first_file_to_its_end(page, keyboard, place):
    await keyboard.go(place, "Libraries")
    await keyboard.to(page.get_by_label("Name of the new library"))
    await keyboard.type("Manuals")
    await keyboard.press("Enter")
    await expect(page.locator(".library-name")).to_have_text("Manuals")
    async with page.expect_file_chooser() as choosing:
        await keyboard.enter(page.get_by_role("button", name="Choose files"))
    await (await choosing.value).set_files(file("pumps.md", PUMPS))
    ready = page.locator(".documents > li", has_text="pumps.md")
    await expect(ready).to_contain_text("Ready")
    await keyboard.enter(page.get_by_role("button", name="Clear the list"))
    await keyboard.to(page.get_by_role("searchbox", name="Question"))
    await keyboard.type("How often is the filter rinsed?")
    await keyboard.press("Enter")
    await expect(page.locator(".hits > li").first).to_be_visible()
    await keyboard.enter(page.locator(".why summary").first)
    await expect(page.get_by_text("By its words: place 1")).to_be_visible()
    await keyboard.back_to(page.get_by_label("State"))
    await keyboard.press("f")
    await expect(page.get_by_text("No document fits.")).to_be_visible()
    await keyboard.press("Home")
    await expect(ready).to_be_visible()
    await keyboard.enter(page.get_by_role("button", name="Delete pumps.md"))
    await keyboard.enter(page.get_by_role("dialog").get_by_role("button", name="Delete"))
    await expect(page.get_by_text("No documents yet.")).to_be_visible()
    await keyboard.back_to(page.get_by_role("button", name="Rename"))
    await keyboard.press("Space", "Control+a")
    await keyboard.type("Handbooks")
    await keyboard.press("Enter")
    await expect(page.locator(".library-name")).to_have_text("Handbooks")
    await keyboard.enter(page.get_by_role("button", name="Delete", exact=True))
    await expect(page.get_by_role("dialog")).to_be_visible()
    await keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("button", name="Delete", exact=True)).to_be_focused()
    await keyboard.press("Enter")
    await keyboard.enter(page.get_by_role("dialog").get_by_role("button", name="Delete"))
    await expect(page.get_by_text("There is no library yet.")).to_be_visible()
    await keyboard.somewhere()
    assert keyboard.unseen == set()


async def test_the_live_view(page, keyboard, service):
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    await page.clock.install()
    await keyboard.go(service, "Live")
    await expect(page.get_by_text("As of")).to_be_visible()
    async with page.expect_request(lambda request: "kpi/day?window_s=900" in request.url):
        await keyboard.choose(page.get_by_label("Period"), "15 minutes")
    assert (await saved(keyboard, page.get_by_role("button", name="CSV"))).startswith("turnwise-live-")
    chart = page.locator(".chart").first
    for summary in (page.locator(".card summary"), chart.locator("summary")):
        await keyboard.enter(summary)
        await expect(summary.locator("xpath=..")).to_have_attribute("open", "")
        await expect(summary).to_be_focused()
    # Newer figures take the place of those that somebody reads.
    for at in (chart.locator("summary"), chart.get_by_role("region"), page.get_by_role("region", name="By agent")):
        if not await at.evaluate("(node) => node === document.activeElement"):
            await keyboard.to(at)
        async with page.expect_response("**/kpi/stalls*"):
            await page.clock.fast_forward(10_500)
        await expect(at).to_be_focused()
    await keyboard.to(page.get_by_label("Exchange id"))
    await keyboard.type(f"{session_id}-e1")
    await keyboard.press("Enter")
    await expect(page.locator(".ledger tbody th").first).to_be_visible()
    await keyboard.enter(page.locator(".ledger summary"))
    await expect(page.locator(".ledger tbody th").first).to_be_hidden()
    await keyboard.somewhere()
    assert keyboard.unseen == set()


async def test_the_usage_view(page, keyboard, service):
    await talk(service, "Cooking", "How long do lentils boil?")
    await service.flush()
    await page.route("**/chatbot/usage?*", lambda route: route.fulfill(status=503, body="{}"))
    await keyboard.go(service, "Usage")
    await expect(page.get_by_text("could not be read")).to_be_visible()
    await page.unroute("**/chatbot/usage?*")
    await keyboard.enter(page.get_by_role("button", name="Try again"))
    await expect(page.get_by_role("region", name="By agent")).to_be_visible()
    await keyboard.somewhere()
    await keyboard.choose(page.get_by_label("Period"), "7 days")
    await keyboard.choose(page.get_by_label("Whose"), "Everybody's")
    await expect(page.get_by_role("region", name="By person")).to_be_visible()
    await keyboard.enter(page.locator(".chart summary").first)
    await expect(page.get_by_role("region", name="Values: Answers").locator("tbody tr")).to_have_count(7)
    await keyboard.back_to(page.get_by_label("Whose"))
    assert (await saved(keyboard, page.get_by_role("button", name="Save as CSV"))).endswith(".csv")
    assert keyboard.unseen == set()


async def test_the_settings(page, keyboard, service):
    await keyboard.go(service, "Settings")
    await keyboard.to(page.get_by_label("Language"))
    await keyboard.press("ArrowDown")
    await expect(page.get_by_role("heading", name="Mes données")).to_be_visible()
    await keyboard.to(page.get_by_label("Langue"))
    await keyboard.press("ArrowUp")
    await expect(page.get_by_role("heading", name="My data")).to_be_visible()
    await keyboard.choose(page.get_by_label("Appearance"), "Dark")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await keyboard.enter(page.get_by_role("button", name="New key"))
    form = page.get_by_role("form", name="New key")
    await expect(form.get_by_label("Name", exact=True)).to_be_focused()
    await keyboard.type("One")
    await keyboard.to(form.get_by_label("Search documents"))
    await keyboard.press("Space")
    await keyboard.choose(form.get_by_label("Valid for"), "7 days")
    await keyboard.enter(form.get_by_role("button", name="Make the key"))
    await expect(page.get_by_role("textbox", name="The key")).to_be_focused()
    await keyboard.enter(page.get_by_role("button", name="Done"))
    (made,) = await service.get("/chatbot/keys")
    assert made["scopes"] == ["ask", "read"]
    await keyboard.back_to(page.get_by_role("button", name="Revoke One"))
    await keyboard.press("Enter", "Escape")
    await expect(page.get_by_role("button", name="Revoke One")).to_be_focused()
    await keyboard.press("Enter")
    await keyboard.enter(page.get_by_role("dialog").get_by_role("button", name="Revoke"))
    await expect(page.locator(".key.ended")).to_be_visible()
    await keyboard.somewhere()
    assert await saved(keyboard, page.get_by_role("button", name="Save a copy")) == "my-data.json"
    await keyboard.enter(page.get_by_role("button", name="Delete everything"))
    await keyboard.to(page.get_by_role("dialog").get_by_label("to go on"))
    await keyboard.type("delete")
    await keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Delete everything")).to_be_focused()
    assert keyboard.unseen == set()


async def test_what_people_say_of_answers(page, keyboard, service):
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    rating = {"rating": 1, "reason": "not_true", "messageId": "1", "sessionId": session_id, "agentName": "Georges"}
    async with service.http.post(f"{BASE}/chatbot/feedback", json=rating) as response:
        assert response.status == 204
    await service.flush()
    await keyboard.go(service, "Feedback")
    cards = page.get_by_role("list", name="Ratings").get_by_role("listitem")
    await expect(cards).to_have_count(1)
    await keyboard.choose(page.locator("#place").get_by_role("combobox", name="Rating"), "Good answer")
    await expect(cards).to_have_count(0)
    await keyboard.press("End")
    await expect(cards).to_have_count(1)
    assert await saved(keyboard, page.get_by_role("button", name="Save as CSV")) == "feedback.csv"
    assert keyboard.unseen == set()


async def test_a_shared_conversation(page, keyboard, service):
    persistence = service.instances[0].running.persistence
    session = await persistence.store.get(await service.create_session("Open"), "admin")
    assert session is not None
    metadata = {"agent_id": "Georges", "sources": [SOURCE]}
    await persistence.log.append(turn(session, "x0", "Is it?", "It is so [1].", metadata=metadata))
    await page.goto(await made_link(service, session.id))
    await expect(page.locator("#place .answer")).to_be_visible()
    citation = page.locator("#place .citation")
    await keyboard.enter(citation)
    passage = page.locator("dialog.passage")
    await keyboard.to(passage.get_by_role("region"))
    await keyboard.press("Escape")
    await expect(citation).to_be_focused()
    await keyboard.enter(page.locator("#place .sources li button").first)
    await keyboard.enter(passage.get_by_role("button", name="Close"))
    await keyboard.enter(page.locator("#place").get_by_role("button", name="Copy answer"))
    await keyboard.somewhere()
    assert keyboard.unseen == set()


async def test_a_conversation_from_its_first_question_to_its_end(page, keyboard, service):
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.get_by_label("Your message")).to_be_focused()
    await keyboard.type("How long do lentils boil?")
    await keyboard.press("Enter")
    turns = page.locator(".turn")
    await expect(turns).to_have_attribute("data-status", "done")
    await expect(page.get_by_label("Your message")).to_be_focused()
    await keyboard.back_to(page.get_by_label("Bad answer"))
    await keyboard.press("Space")
    await keyboard.to(page.get_by_role("radio").first)
    await keyboard.press("Space", "ArrowDown")
    await keyboard.enter(page.get_by_role("button", name="Send", exact=True).first)
    await expect(page.get_by_role("status").filter(has_text="Thank you.")).to_be_visible()
    await expect(page.get_by_label("Bad answer")).to_be_focused()
    await keyboard.back_to(page.get_by_role("button", name="Edit question"))
    await keyboard.press("Enter")
    await keyboard.type(" Really")
    await keyboard.press("Enter")
    await expect(page.locator(".version")).to_have_text("2 of 2")
    await expect(turns).to_have_attribute("data-status", "done")
    await keyboard.back_to(page.get_by_role("button", name="Earlier version"))
    await keyboard.press("Enter")
    await expect(page.locator(".version")).to_have_text("1 of 2")
    await keyboard.somewhere()
    await keyboard.back_to(page.get_by_role("button", name="Share"))
    await keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    await keyboard.enter(dialog.get_by_role("button", name="Make a link"))
    await expect(dialog.get_by_label("New link")).to_be_focused()
    await keyboard.enter(dialog.get_by_role("button", name="Revoke the link"))
    await expect(dialog.get_by_role("status")).to_contain_text("The link is revoked.")
    await keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Share")).to_be_focused()
    await keyboard.back_to(page.get_by_role("button", name="Options of"))
    await keyboard.press("Enter", "ArrowDown", "ArrowUp", "Escape")
    await expect(page.get_by_role("button", name="Options of")).to_be_focused()
    await keyboard.press("Enter", "End", "Enter")
    await expect(page.get_by_role("button", name="Undo")).to_be_focused()
    await keyboard.to(page.locator("#undo").get_by_role("button", name="Close"))
    await keyboard.press("Enter")
    await expect(page.locator("#undo")).to_be_hidden()
    await keyboard.somewhere()
    assert keyboard.unseen == set()


async def test_where_to_search_and_the_documents_that_an_answer_cites(page, keyboard, library):
    service, _ = library
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.get_by_label("Your message")).to_be_focused()
    await keyboard.choose(page.locator("#agent"), "Rico")
    where = page.get_by_role("button", name="Where to search")
    await keyboard.enter(where)
    dialog = page.get_by_role("dialog", name="Where to search")
    await keyboard.to(dialog.get_by_role("checkbox").first)
    await keyboard.press("Space")
    await keyboard.enter(dialog.get_by_role("button", name="Done"))
    await expect(where).to_be_focused()
    chips = page.get_by_role("list", name="Where to search").get_by_role("listitem")
    await expect(chips).to_have_count(1)
    await keyboard.back_to(chips.get_by_role("button"))
    await keyboard.press("Enter")
    await expect(chips).to_have_count(0)
    await keyboard.somewhere()
    await keyboard.to(page.get_by_label("Your message"))
    await keyboard.type(QUESTION)
    await keyboard.press("Enter")
    await expect(page.locator(".turn")).to_have_attribute("data-status", "done")
    citation = page.locator("button.citation").first
    await keyboard.back_to(citation)
    await keyboard.press("Enter")
    await expect(page.locator("#reader mark").first).to_be_visible()
    await keyboard.to(page.locator("#reader").get_by_role("button", name="Close"))
    await keyboard.press("Enter")
    await expect(page.locator("#reader")).to_be_hidden()
    await expect(citation).to_be_focused()
    assert keyboard.unseen == set()


async def test_an_agent_from_its_name_to_its_end(page, keyboard, open_service):
    await keyboard.go(open_service, "Agents")
    await keyboard.to(page.get_by_label("Name"))
    await keyboard.type("Keys")
    await keyboard.enter(page.get_by_role("button", name="Create agent"))
    await expect(page.locator(".builder h2 bdi")).to_have_text("Keys")
    await keyboard.somewhere()
    await keyboard.to(page.get_by_label("Description"))
    await keyboard.type("Answers from the keyboard.")
    await keyboard.enter(page.get_by_role("button", name="Save"))
    await expect(page.get_by_text("Saved.")).to_be_visible()
    await keyboard.somewhere()
    await keyboard.to(page.get_by_role("button", name="Delete"))
    await keyboard.press("Enter", "Escape")
    await expect(page.get_by_role("button", name="Delete")).to_be_focused()
    await keyboard.press("Enter")
    await keyboard.enter(page.get_by_role("dialog").get_by_role("button", name="Delete"))
    await expect(page.get_by_role("link", name="Keys")).to_have_count(0)
    await expect(page.get_by_role("button", name="Create agent")).to_be_visible()
    await keyboard.somewhere()
    assert keyboard.unseen == set()
