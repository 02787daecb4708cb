"""Libraries on the page: real page, agentic service, knowledge flow, Postgres and embedder."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Locator, Page, Route, expect

from agentic_backend.app import Parts
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow, run_knowledge_flow, settings_on
from tests.support.keycloak import Administrator, security_of
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.service import RunningService, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

PUMPS = """# Pumps

## Cleaning

Rinse the filter once a week with warm water.

## Noise

A humming pump is full of air.
"""
BEES = "# Bees\n\nBees make honey from nectar, and visit two million flowers for a pound of it.\n"
HOSTILE = "<img src=x onerror=alert(1)>\u202eevil"
LONG = "W" * 150


@pytest_asyncio.fixture(loop_scope="module")
async def knowledge(database: Database, mock_llm: MockModel) -> AsyncIterator[RunningKnowledgeFlow]:
    """Knowledge flow with its own embedder."""
    local = {"provider": "local", "name": "all-MiniLM-L6-v2", "settings": {}}
    async with run_knowledge_flow(settings_on(database, mock_llm.base_url, embedding_model=local)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def place(knowledge: RunningKnowledgeFlow, start_service: StartService) -> AsyncIterator[RunningService]:
    """The agentic service beside it."""
    ai: dict[str, Any] = {"knowledge_flow_url": f"http://127.0.0.1:{knowledge.port}{KNOWLEDGE_BASE}"}
    async with start_service(ai=ai, parts=Parts(knowledge_s=PATIENCE_S)) as service:
        yield service


def file(name: str, text: str | bytes) -> FilePayload:
    return {"name": name, "mimeType": "", "buffer": text if isinstance(text, bytes) else text.encode()}


async def open_place(page: Page, service: RunningService, rest: str = "") -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/#/libraries{rest}")


async def create(page: Page, service: RunningService, name: str) -> None:
    """Make a library on the page, which then shows it."""
    await open_place(page, service)
    await page.get_by_label("Name of the new library").fill(name)
    await page.get_by_role("button", name="Create library").click()
    await expect(page.locator(".library-name")).to_have_text(name)


async def upload(page: Page, *files: FilePayload) -> None:
    await page.locator("input[data-kind=files]").set_input_files(list(files))


def row(page: Page, text: str) -> Locator:
    return page.locator(".documents > li", has_text=text)


def sent(page: Page, text: str) -> Locator:
    return page.locator(".uploads > li", has_text=text)


async def test_a_library_from_its_first_file_to_its_end(page, place):
    await page.goto(f"http://127.0.0.1:{place.port}/")
    await page.get_by_role("link", name="Libraries").click()
    await expect(page.get_by_text("There is no library yet.")).to_be_visible()
    await create(page, place, "Archive")
    await create(page, place, "Manuals")

    await upload(page, file("pumps.md", PUMPS), file("bees.md", BEES), file("disk.bin", b"\x00\x01"))
    await expect(sent(page, "disk.bin")).to_contain_text("Refused: files of this type are not read.")
    for name in ("pumps.md", "bees.md"):
        await expect(sent(page, name)).to_contain_text("In the library")
    await expect(page.get_by_text("3 of 3 done, 1 refused")).to_be_visible()
    await expect(row(page, "pumps.md")).to_contain_text("Ready")
    await expect(row(page, "pumps.md")).to_contain_text(re.compile(r"\d+ bytes.*\d passages?.*Added "))

    search = page.get_by_role("search", name="Search in this library")
    await search.get_by_label("Question").fill("How often is the filter rinsed?")
    await search.get_by_role("button", name="Search").click()
    first = page.locator(".hits > li").first
    await expect(first).to_contain_text("Rinse the filter once a week")
    await expect(first.locator("mark").first).to_have_text("filter")
    await first.get_by_text("Why this score").click()
    await expect(first).to_contain_text("By its words: place 1")
    await expect(first).to_contain_text("By its meaning: place 1")

    await page.get_by_role("button", name="Rename").click()
    await page.get_by_role("dialog").get_by_label("Name").fill("Handbooks")
    await page.keyboard.press("Enter")
    await expect(page.locator(".library-name")).to_have_text("Handbooks")
    await expect(page.get_by_role("button", name="Rename")).to_be_focused()

    await page.get_by_role("button", name="Move bees.md").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Move to another library").select_option("Archive")
    await dialog.get_by_role("button", name="Move").click()
    await expect(row(page, "bees.md")).to_have_count(0)
    await page.get_by_role("link", name="All libraries").click()
    await page.get_by_role("link", name="Archive").click()
    await expect(row(page, "bees.md")).to_contain_text("Ready")

    await page.get_by_role("button", name="Delete bees.md").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No documents yet.")).to_be_visible()
    await page.get_by_role("link", name="All libraries").click()
    await page.get_by_role("link", name="Handbooks").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("1 document")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("link", name="Archive")).to_be_visible()
    await expect(page.get_by_role("link", name="Handbooks")).to_have_count(0)


async def test_names_of_others_are_text_and_nothing_else(page, place):
    await create(page, place, HOSTILE)
    assert await page.locator(".library-name img").count() == 0
    text = f"# {HOSTILE}\n\n<script>alert(1)</script> {LONG}\n"
    await upload(page, file(f"<b>bold{LONG}.md", text), file("<i>no.bin", b"\x00"))
    await expect(page.get_by_text("2 of 2 done, 1 refused")).to_be_visible()
    await expect(page.locator(".documents > li")).to_have_count(1)
    search = page.get_by_role("search", name="Search in this library")
    await search.get_by_label("Question").fill("<script>alert(1)</script>")
    await search.get_by_role("button", name="Search").click()
    await expect(page.locator(".hit-text")).to_contain_text("<script>")
    assert await page.locator(".libraries :is(img, b, i, script)").count() == 0
    await page.set_viewport_size({"width": 320, "height": 700})
    wide = "document.querySelector('#place').scrollWidth <= document.querySelector('#place').clientWidth"
    assert await page.evaluate(wide)


async def test_a_document_is_read_again_from_the_file_that_is_kept(page, place):
    await create(page, place, "Again")
    await upload(page, file("pumps.md", PUMPS))
    await expect(row(page, "pumps.md")).to_contain_text("Ready")
    await page.get_by_role("button", name="Read pumps.md again").click()
    await expect(sent(page, "pumps.md").nth(1)).to_contain_text("In the library")
    await expect(row(page, "pumps.md")).to_contain_text("version 2")
    search = page.get_by_role("search", name="Search in this library")
    await search.get_by_label("Question").fill("How often is the filter rinsed?")
    await search.get_by_role("button", name="Search").click()
    await expect(page.locator(".hits > li").first).to_contain_text("Rinse the filter once a week")
    await page.get_by_role("button", name="Clear the list").click()
    await expect(page.locator(".uploads > li")).to_have_count(0)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Save the file pumps.md").click()
    saved = await (await download.value).path()
    assert await asyncio.to_thread(Path(saved).read_text) == PUMPS


async def test_a_damaged_file_is_listed_with_its_reason_and_one_beyond_the_limit_is_refused(page, place, tmp_path):
    await create(page, place, "Damaged")
    large = tmp_path / "large.txt"
    await asyncio.to_thread(large.write_bytes, b"some words \n" * 5_000_000)
    await page.locator("input[data-kind=files]").set_input_files(large)
    await expect(sent(page, "large.txt")).to_contain_text("Refused: it is larger than allowed.")
    await upload(page, file("broken.pdf", "%PDF-1.7 and nothing of one"))
    await expect(row(page, "broken.pdf")).to_contain_text("Failed")
    await expect(row(page, "broken.pdf")).to_contain_text("it is damaged, or not of the type that its name says.")
    assert await row(page, "broken.pdf").get_by_role("button").count() == 2
    await page.get_by_label("State").select_option("Ready")
    await expect(page.get_by_text("No document fits.")).to_be_visible()


async def test_dropped_files_are_taken_three_at_a_time(page, place):
    await create(page, place, "Dropped")
    held: list[Route] = []
    three = asyncio.Event()

    async def hold(route: Route) -> None:
        held.append(route)
        if len(held) == 3:
            three.set()
        if len(held) > 3:
            await route.continue_()

    await page.route("**/upload-process-documents", hold)
    script = """() => {
      const dropped = new DataTransfer();
      for (let at = 0; at < 5; at += 1) dropped.items.add(new File([`# Paper ${at}`], `p${at}.md`));
      return dropped;
    }"""
    await page.dispatch_event(".drop-zone", "drop", {"dataTransfer": await page.evaluate_handle(script)})
    async with asyncio.timeout(PATIENCE_S):
        await three.wait()
    await expect(page.locator(".uploads > li[data-state=waiting]")).to_have_count(2)
    await page.get_by_role("button", name="Cancel p4.md").click()
    await expect(sent(page, "p4.md")).to_contain_text("Cancelled")
    assert len(held) == 3
    for route in held[:3]:
        await route.continue_()
    await expect(page.get_by_text("5 of 5 done, 0 refused")).to_be_visible()
    await page.get_by_role("button", name="Try p4.md again").click()
    await expect(sent(page, "p4.md")).to_contain_text("In the library")


async def test_a_folder_is_taken_with_what_is_below_it(page, place, tmp_path):
    below = tmp_path / "papers" / "deep"
    below.mkdir(parents=True)
    (below / "bees.md").write_text(BEES)
    (below / ".hidden.md").write_text(BEES)
    for at in range(5):
        (tmp_path / "papers" / f"p{at}.md").write_text(f"# Paper {at}\n\nNumber {at}.\n")
    await create(page, place, "Papers")
    await page.locator("input[data-kind=folder]").set_input_files(tmp_path / "papers")
    await expect(page.get_by_text("1 hidden file was left out.")).to_be_visible()
    await expect(page.get_by_text("6 of 6 done, 0 refused")).to_be_visible()
    await expect(row(page, "papers/deep/bees.md")).to_contain_text("Ready")
    await page.get_by_label("Part of a name").fill("p3")
    await expect(page.locator(".documents > li")).to_have_count(1)


async def sign_in(page: Page, user: str) -> None:
    await page.locator("#username").fill(user)
    await page.locator("#password").fill(user)
    await page.locator("#kc-login").click()


@pytest.mark.java
@pytest.mark.timeout(600)
async def test_a_library_is_shared_and_taken_back_with_keycloak(
    page, chromium, keycloak, database, mock_llm, start_service
):
    security = security_of(keycloak)
    knowledge = run_knowledge_flow(settings_on(database, mock_llm.base_url, security=security))
    async with knowledge as running, Administrator(keycloak) as admin:
        ai = {"knowledge_flow_url": f"http://127.0.0.1:{running.port}{KNOWLEDGE_BASE}"}
        async with start_service(ai=ai, security=security, parts=Parts(knowledge_s=PATIENCE_S)) as service:
            await admin.let_page_in(f"http://127.0.0.1:{service.port}")
            await open_place(page, service)
            await sign_in(page, "ada")
            await create(page, service, "Manuals")
            await upload(page, file("pumps.md", PUMPS))
            await expect(row(page, "pumps.md")).to_contain_text("Ready")
            address = page.url

            bobs = await chromium.new_context()
            theirs = await bobs.new_page()
            await theirs.goto(address)
            await sign_in(theirs, "bob")
            await expect(theirs.get_by_text("This library is not there, or not for you.")).to_be_visible()

            await page.get_by_role("button", name="Share").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Everybody who can sign in").check()
            await dialog.get_by_label("People, by their id").fill(" carol \n\ncarol\n")
            await dialog.get_by_role("button", name="Save").click()
            await expect(page.locator("#announcer")).to_have_text("The readers are saved.")
            await theirs.get_by_role("link", name="All libraries").click()
            await theirs.get_by_role("link", name="Manuals").click()
            await expect(theirs.get_by_text("Somebody shares this library with you")).to_be_visible()
            await expect(row(theirs, "pumps.md")).to_contain_text("Ready")
            assert await row(theirs, "pumps.md").get_by_role("button").count() == 1
            assert await theirs.get_by_role("button", name="Choose files").count() == 0
            assert await theirs.get_by_role("button", name="Share").count() == 0

            await page.get_by_role("button", name="Share").click()
            await expect(dialog.get_by_label("People, by their id")).to_have_value("carol")
            await dialog.get_by_label("Everybody who can sign in").uncheck()
            # The dialog closes before the service has answered, and the announcer says what it said before.
            async with page.expect_response(lambda response: response.request.method == "PUT"):
                await dialog.get_by_role("button", name="Save").click()
            await expect(dialog).to_have_count(0)
            await theirs.get_by_role("link", name="All libraries").click()
            await expect(theirs.get_by_text("There is no library yet.")).to_be_visible()
            await bobs.close()


async def test_a_knowledge_flow_that_is_away_is_said(page, start_service):
    async with start_service(ai={"knowledge_flow_url": f"http://127.0.0.1:{free_port()}/kf"}) as service:
        await open_place(page, service)
        await expect(page.locator("#notice")).to_contain_text("The documents are not reachable")
        await expect(page.locator("#notice").get_by_role("button", name="Try again")).to_be_visible()


async def test_a_library_of_more_than_one_request_tells_of_is_listed_whole(page, service):
    asked: list[tuple[int, int]] = []

    async def answer(route: Route) -> None:
        wanted = route.request.post_data_json
        asked.append((wanted["offset"], wanted["limit"]))
        window = range(wanted["offset"], min(1_030, wanted["offset"] + wanted["limit"]))
        await route.fulfill(json={"total": 1_030, "documents": [{"document_uid": str(number)} for number in window]})

    await page.route("**/knowledge/documents/browse", answer)
    await page.goto(f"http://127.0.0.1:{service.port}/")
    listed = await page.evaluate(
        """async () => {
          const { Api, Credentials } = await import("/web/api.js");
          const { LibraryApi } = await import("/web/libraries/api.js");
          const api = new Api(new URL("/agentic/v1/", location.href), new Credentials());
          const { total, documents } = await new LibraryApi(api).documents({ limit: 1050 });
          return { total, uids: documents.map((one) => one.document_uid) };
        }"""
    )
    assert asked == [(0, 1_000), (1_000, 50)]
    assert listed == {"total": 1_030, "uids": [str(number) for number in range(1_030)]}
