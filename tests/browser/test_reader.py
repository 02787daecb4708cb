"""The document that a citation opens: beside the answer, over it on small screens, and the way through documents."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from agentic_backend.app import Parts
from tests.browser.test_sources import AGENTS, ask_rico, ingest, knowledge
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow
from tests.support.patience import PATIENCE_S
from tests.support.service import RunningService, StartService

__all__ = ["knowledge"]

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

MANUAL = """# Coffee machine

## Cleaning

The filter is rinsed once a week under running water. Descaling takes 40 minutes and is due every 90 days.
Nobody but the caretaker opens the boiler.

More in [the parts list](parts.md), in [its second half](parts.md#the-pump), [below](#if-it-leaks),
in [a section that is not there](#nowhere), in [a lost file](lost/more.md) and on [the web](https://coffee.example/).

![A drawing](drawing.png) [nothing](javascript:alert(1)) [other](//evil.example/x) [up](../../../secret.md)

## If it leaks

| sign | what to do |
|---|---|
| a drop an hour | wait until the next cleaning of the machine |
| a stream | turn the red valve on the wall behind it by 90 degrees |

"""
PARTS = (
    "# Parts\n\n[Back to the manual](manual.md)\n\n" + "A washer.\n\n" * 80 + "### The pump\n\nIt has a blue seal.\n"
)
HOSTILE = (
    "# <img src=x onerror=alert(1)> \u202egnp.exe\n\n"
    "The <b>badge</b> opens <script>alert(1)</script> door seven of the \u202eelttek house for visitors.\n\n"
    f'{"unbroken" * 400}\n\n[run](JaVaScRiPt:alert(1)) [x](x.md"onclick=alert(1)) ![p](https://evil.example/p.png)\n'
)
FILES = {"manual.md": MANUAL, "parts.md": PARTS, "badge.md": HOSTILE}
QUESTION = "How often is the filter rinsed, and how long does descaling take?"
WIDE: Any = {"width": 1400, "height": 900}
NARROW: Any = {"width": 1000, "height": 700}
PHONE: Any = {"width": 390, "height": 844}


@pytest_asyncio.fixture(loop_scope="module")
async def library(
    knowledge: RunningKnowledgeFlow, start_service: StartService, tmp_path: Path
) -> AsyncIterator[tuple[RunningService, dict[str, str]]]:
    """The agentic service beside a knowledge flow that holds the files, and their uids."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    uids = await ingest(knowledge, *(tmp_path / name for name in FILES))
    ai: dict[str, Any] = {"knowledge_flow_url": f"http://127.0.0.1:{knowledge.port}{KNOWLEDGE_BASE}", "agents": AGENTS}
    async with start_service(model="mock;gap=5", ai=ai, parts=Parts(knowledge_s=PATIENCE_S)) as service:
        yield service, uids


async def open_document(page: Page, service: RunningService, uid: str) -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/documents/{uid}")
    await expect(page.locator("#reader-text h3").first).to_be_visible()


async def test_the_document_stands_beside_the_answer_and_both_can_be_used(page, library):
    service, _ = library
    await page.set_viewport_size(WIDE)
    await ask_rico(page, service, QUESTION)
    marker = page.locator("button.citation").first
    await marker.click()
    reader = page.get_by_role("complementary", name="Coffee machine")
    await expect(reader.locator("mark").first).to_be_visible()
    boxes = [await page.locator(node).bounding_box() for node in ("#sidebar", "#main", "#reader")]
    assert all(boxes)
    assert all(left["x"] + left["width"] <= right["x"] + 1 for left, right in pairwise(boxes))
    assert boxes[1]["width"] >= 400
    await expect(reader.locator("mark")).not_to_contain_text(["Nobody but"])
    await expect(page.locator("#reader-text")).to_be_focused()

    # The conversation goes on beside it.
    await page.get_by_label("Your message").fill("And the pump?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn")).to_have_count(2)
    await expect(page.locator(".sources")).to_have_count(2)
    await expect(reader).to_be_visible()

    # Another citation takes its place, and nothing is empty in between.
    await page.evaluate(
        """() => {
          window.gaps = 0;
          const reader = document.querySelector("#reader");
          const text = document.querySelector("#reader-text");
          const look = () => { if (reader.hidden || text.childElementCount === 0) window.gaps += 1; };
          new MutationObserver(look).observe(reader, { subtree: true, childList: true, attributes: true });
        }"""
    )
    other = page.locator(".sources").nth(1)
    await other.locator("summary").click()
    await other.locator("button").last.click()
    await expect(page.locator("#reader-text")).not_to_have_attribute("aria-busy", "true")
    assert await page.evaluate("window.gaps") == 0

    await marker.click()
    await expect(reader.locator("mark").first).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#reader")).to_be_hidden()
    await expect(marker).to_be_focused()


async def test_its_width_is_set_by_the_keyboard_and_by_pulling_and_is_kept(page, library):
    service, uids = library
    await page.set_viewport_size(WIDE)
    await open_document(page, service, uids["manual.md"])
    handle = page.get_by_role("separator", name="Width of the document")

    async def width() -> int:
        return int(await page.locator("#reader").evaluate("(node) => node.offsetWidth"))

    before = await width()
    await handle.press("ArrowLeft")
    assert await width() > before
    await handle.press("ArrowRight")
    assert abs(await width() - before) <= 1
    await handle.press("Home")
    least = await width()
    await expect(handle).to_have_attribute("aria-valuenow", "0")
    await handle.press("End")
    await expect(handle).to_have_attribute("aria-valuenow", "100")
    most = await width()
    assert least < before < most
    assert (await page.locator("#main").bounding_box())["width"] >= 400
    await page.mouse.move(WIDE["width"] - most, 300)
    await page.mouse.down()
    await page.mouse.move(WIDE["width"] - 500, 300)
    await page.mouse.up()
    assert abs(await width() - 500) <= 2
    await page.reload()
    await expect(page.locator("#reader-text h3").first).to_be_visible()
    assert abs(await width() - 500) <= 2


@pytest.mark.parametrize("size", [NARROW, PHONE], ids=["narrow", "phone"])
async def test_where_there_is_no_room_it_covers_the_page_and_keeps_the_focus(page, library, size, tmp_path):
    service, _ = library
    await page.set_viewport_size(size)
    await ask_rico(page, service, QUESTION)
    marker = page.locator("button.citation").first
    await marker.click()
    sheet = page.get_by_role("dialog", name="Coffee machine")
    await expect(sheet.locator("mark").first).to_be_visible()
    await page.screenshot(path=tmp_path / "sheet.png")
    for _ in range(12):
        await page.keyboard.press("Tab")
        inside = "document.activeElement === document.body || document.activeElement.closest('#reader') !== null"
        assert await page.evaluate(inside)
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await expect(page.locator("#main")).to_have_js_property("inert", True)

    # More room turns it into a part of the page, less into a sheet again.
    await page.set_viewport_size(WIDE)
    await expect(page.get_by_role("complementary", name="Coffee machine")).to_be_visible()
    await expect(page.locator("#main")).to_have_js_property("inert", False)
    await page.set_viewport_size(size)
    await expect(sheet).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(sheet).to_be_hidden()
    await expect(marker).to_be_focused()
    await expect(page.locator("#main")).to_have_js_property("inert", False)
    if size == NARROW:
        await marker.click()
        await page.mouse.click(20, 350)
        await expect(sheet).to_be_hidden()


async def test_relative_links_lead_to_documents_of_the_library_and_back(page, library):
    service, uids = library
    await page.set_viewport_size(WIDE)
    await open_document(page, service, uids["manual.md"])
    text = page.locator("#reader-text")
    title = page.locator("#reader-title")
    back = page.locator("#reader-back")
    await expect(back).to_be_hidden()

    await text.get_by_role("button", name="the parts list").click()
    await expect(title).to_have_text("Parts")
    await expect(text.get_by_role("heading", name="Parts")).to_be_visible()
    await text.get_by_role("button", name="Back to the manual").click()
    await expect(title).to_have_text("Coffee machine")
    await page.get_by_role("button", name="Back to Parts").click()
    await expect(title).to_have_text("Parts")
    await back.click()
    await expect(text.get_by_role("heading", name="Coffee machine")).to_be_visible()
    await expect(back).to_be_hidden()

    await text.get_by_role("button", name="its second half").click()
    await expect(text.get_by_role("heading", name="The pump")).to_be_focused()
    await expect(text.get_by_role("heading", name="The pump")).to_be_in_viewport()
    # Its level is the one below the document's title, though the file left one out.
    await expect(text.get_by_role("heading", name="The pump", level=4)).to_be_visible()
    await back.click()
    await text.get_by_role("button", name="below").click()
    await expect(text.get_by_role("heading", name="If it leaks")).to_be_focused()
    await back.click()
    await expect(back).to_be_hidden()


async def test_links_that_lead_nowhere_become_text_with_the_reason(page, library):
    service, uids = library
    await page.set_viewport_size(WIDE)
    await open_document(page, service, uids["manual.md"])
    text = page.locator("#reader-text")
    for label, reason in (
        ("a section that is not there", "This document has no such section."),
        ("a lost file", "No document of this library that you may read is meant by this link."),
        ("up", "No document of this library that you may read is meant by this link."),
    ):
        await text.get_by_role("button", name=label, exact=True).click()
        await expect(page.locator("#reader-state")).to_have_text(reason)
        await expect(text.get_by_role("button", name=label, exact=True)).to_have_count(0)
        await expect(text.locator(".dead-link", has_text=label)).to_contain_text(reason)
        await expect(text).to_be_focused()
    assert await text.locator("a").evaluate_all("(links) => links.map((link) => link.href)") == [
        "https://coffee.example/",
        "http://evil.example/x",
    ]
    await expect(text.locator("img")).to_have_count(0)
    await expect(text.locator(".dead-link", has_text="A drawing")).to_contain_text(
        "Images of a document are not shown."
    )


@pytest.mark.parametrize(
    ("claim", "marked"),
    [
        ("Descaling is due each 90 days and takes 40 minutes.", "Descaling takes 40 minutes and is due every 90 days."),
        (
            "the filter is rinsed once a week under running water",
            "The filter is rinsed once a week under running water.",
        ),
        ("If there is a stream, the red valve on the wall is turned by 90 degrees.", "a stream|turn the red valve"),
        ("Bees make honey from nectar.", ""),
    ],
)
async def test_the_sentence_that_supports_the_claim_is_marked_and_not_the_passage(page, library, claim, marked):
    """What the page calls for a citation, with claims that no model need be made to say."""
    service, uids = library
    await page.goto(f"http://127.0.0.1:{service.port}/")
    async with service.http.get(f"/agentic/v1/documents/{uids['manual.md']}/markdown") as response:
        content = (await response.json())["content"]
    await page.evaluate(
        """async ([content, claim]) => {
          const { Reader } = await import("/web/reader.js");
          const passage = { text: content, start: 0, end: content.length, section: null, page: null };
          const documents = { passage: async () => passage, documentText: async () => content };
          const reader = new Reader(document.querySelector("#reader"));
          reader.open({ documentUid: "d", chunkUid: "c", title: "Manual", claim }, documents);
        }""",
        [content, claim],
    )
    await expect(page.locator("#reader-text .cited").first).to_be_visible()
    marks = await page.locator("#reader-text mark").all_text_contents()
    if marked == "":
        assert marks == []
        await expect(page.locator("#reader-state")).to_contain_text("it is marked as a whole")
        await expect(page.locator("#reader-text .at-sentence")).to_have_count(0)
    else:
        assert "|".join(marks).startswith(marked)
        await expect(page.locator("#reader-state")).to_be_hidden()
        await expect(page.locator("#reader-text mark").first).to_be_in_viewport()


async def test_what_a_document_says_is_inert(page, library):
    service, uids = library
    await page.set_viewport_size(PHONE)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    await open_document(page, service, uids["badge.md"])
    reader = page.locator("#reader")
    assert await reader.locator("img, script, b").count() == 0
    await expect(page.locator("#reader-text")).to_contain_text("<script>alert(1)</script>")
    assert await reader.evaluate(
        "(node) => [...node.querySelectorAll('*')].every((one) => !one.hasAttribute('onclick'))"
    )
    assert await reader.evaluate("(node) => node.scrollWidth <= node.clientWidth && node.clientWidth <= innerWidth")
    for button in await page.locator("#reader-text button.link").all():
        await button.click()
        await expect(page.locator("#reader-state")).to_be_visible()
    assert dialogs == []


async def test_sources_that_the_answer_does_not_cite_are_folded(page, library):
    service, _ = library
    await ask_rico(page, service, QUESTION)
    sources = page.get_by_role("group", name="Sources", exact=True)
    cited = {int(number) for number in await page.locator("button.citation").all_text_contents()}
    shown = await sources.locator("button:visible .number").all_text_contents()
    assert {int(number) for number in shown} == cited
    everything = await sources.locator(".number").count()
    fold = sources.locator("summary")
    left = everything - len(cited)
    await expect(fold).to_have_text(
        f"{left} more source{'' if left == 1 else 's'} that {'was' if left == 1 else 'were'} searched"
    )
    await fold.focus()
    await page.keyboard.press("Enter")
    await expect(sources.locator("button:visible")).to_have_count(everything)


async def test_the_page_says_all_of_it_in_french(chromium, library):
    service, uids = library
    context = await chromium.new_context(viewport=WIDE, locale="fr-FR", reduced_motion="reduce")
    page = await context.new_page()
    await page.goto(f"http://127.0.0.1:{service.port}/documents/{uids['manual.md']}")
    await page.get_by_role("button", name="the parts list").click()
    await expect(page.get_by_role("button", name="Retour à Coffee machine")).to_be_visible()
    await expect(page.get_by_role("separator", name="Largeur du document")).to_be_visible()
    await page.get_by_role("button", name="Fermer le document").click()
    await expect(page.locator("#reader")).to_be_hidden()
    await context.close()
