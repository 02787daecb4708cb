"""Agents that are made in the page: real page, service, Postgres and model."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.browser.test_axe import Look, wrong_in
from tests.browser.test_languages import left_in_english, note_catalogues
from tests.support.service import RunningService, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = "<img src=x onerror=alert(1)>\u202eevil"
LONG = "W" * 78
AI: dict[str, Any] = {
    "use_static_config_only": False,
    "agents": [
        {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
        {"name": "Rico", "class_path": "agentic_backend.agent.rag"},
    ],
    "chat_models": [{"id": "large", "title": "<b>Large</b>", "name": "mock;tokens=3"}],
}
MCP = {"servers": [{"id": "notes", "url": "http://127.0.0.1:9/mcp"}]}


@pytest_asyncio.fixture(loop_scope="module")
async def open_service(start_service: StartService) -> AsyncIterator[RunningService]:
    """A service in which agents may be made."""
    async with start_service(ai=AI, mcp=MCP) as service:
        yield service


async def open_place(page: Page, service: RunningService, rest: str = "") -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/#/agents{rest}")


async def create(
    page: Page, service: RunningService, name: str, kind: str = "Answers from what the model knows"
) -> None:
    """Make an agent on the page, which then shows its form."""
    await open_place(page, service)
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Kind").select_option(kind)
    await page.get_by_role("button", name="Create agent").click()
    await expect(page.locator(".builder h2 bdi")).to_have_text(name)


async def save(page: Page) -> None:
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("Saved.")).to_be_visible()


def problem(page: Page, label: str) -> Locator:
    return page.locator(".value", has=page.get_by_label(label, exact=True)).locator(".problem")


async def made(service: RunningService) -> list[Any]:
    agents: list[Any] = (await service.get("/agents/editable"))["agents"]
    return agents


async def test_an_agent_is_made_asked_changed_and_deleted(page, open_service):
    await page.goto(f"http://127.0.0.1:{open_service.port}/")
    await page.get_by_role("link", name="Agents").click()
    await expect(page.get_by_text("There is none yet.")).to_be_visible()
    await create(page, open_service, "Ada")
    await page.get_by_label("In one line").fill("Poet")
    await page.get_by_label("Questions to begin with").fill("Rhyme on bee\n\nRhyme on sea\n")
    await page.get_by_label("System prompt").fill("Rhyme.")
    await page.get_by_label("Model", exact=True).select_option("<b>Large</b>")
    await save(page)
    (ada,) = await made(open_service)
    assert (ada["tuning"]["role"], ada["model"], ada["starters"]) == ("Poet", "large", ["Rhyme on bee", "Rhyme on sea"])
    assert ada["tuning"]["fields"][0]["default"] == "Rhyme."

    await page.get_by_role("button", name="Try it").click()
    await expect(page.locator("#agent")).to_have_value(ada["id"])
    await page.get_by_role("button", name="Rhyme on bee").click()
    await expect(page.locator(".turn").last).to_have_attribute("data-status", "done")
    history = await open_service.get(f"/chatbot/session/{page.url.rpartition('/')[2]}/history")
    assert history[-1]["metadata"]["model"] == "mock;tokens=3"
    assert history[-1]["metadata"]["agent_id"] == ada["id"]

    await page.keyboard.press("Control+k")
    await page.locator("#switcher input").fill("agents")
    await page.locator(".switcher-entry", has_text="Agents").click()
    await page.get_by_role("link", name="Ada").click()
    await page.get_by_label("Name", exact=True).fill("Ada II")
    await page.get_by_role("checkbox", name="It can be asked").uncheck()
    await save(page)
    await expect(page.locator(".builder h2 bdi")).to_have_text("Ada II")
    await expect(page.get_by_role("button", name="Try it")).to_be_hidden()
    assert [(one["name"], one["enabled"]) for one in await made(open_service)] == [("Ada II", False)]

    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    await expect(page.get_by_role("button", name="Delete")).to_be_focused()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("There is none yet.")).to_be_visible()
    assert await made(open_service) == []


async def test_a_refusal_stands_at_its_value(page, open_service):
    await create(page, open_service, "Bert", "Answers from documents")
    await page.get_by_label("Passages to retrieve").fill("0")
    await page.get_by_role("button", name="Save").click()
    wrong = page.get_by_label("Passages to retrieve")
    await expect(problem(page, "Passages to retrieve")).to_contain_text(
        "rag.top_k is not a whole number from 1 to 100."
    )
    await expect(wrong).to_be_focused()
    await expect(wrong).to_have_attribute("aria-invalid", "true")
    await wrong.fill("9")
    await page.get_by_label("Name", exact=True).fill("Georges")
    await page.get_by_role("button", name="Save").click()
    await expect(problem(page, "Name")).to_have_text("Another agent has this name.")
    await expect(problem(page, "Passages to retrieve")).to_be_hidden()
    await page.get_by_label("Name", exact=True).fill(" ")
    await page.keyboard.press("Enter")
    await expect(problem(page, "Name")).to_have_text("This is needed.")
    await page.get_by_label("Name", exact=True).fill("Bert")
    await page.get_by_label("Questions to begin with").fill("one\none")
    await page.get_by_role("button", name="Save").click()
    await expect(problem(page, "Questions to begin with, one a line")).to_have_text("At most 6, each once.")
    await page.get_by_label("Questions to begin with").fill("one")
    await page.get_by_role("checkbox", name="Attach files").check()
    await page.get_by_role("checkbox", name="<b>Large</b>").check()
    await page.get_by_label("Follow-up questions").select_option("off")
    await save(page)
    (bert,) = await made(open_service)
    values = {field["key"]: field["default"] for field in bert["tuning"]["fields"]}
    assert (values["rag.top_k"], values["rag.follow_up"]) == (9, "off")
    assert bert["chat_options"]["attach_files"] is True
    assert bert["further_models"] == ["large"]
    await page.reload()
    await expect(page.get_by_label("Passages to retrieve")).to_have_value("9")
    await open_place(page, open_service)
    await page.get_by_label("Name").fill("Bert")
    await page.keyboard.press("Enter")
    await expect(problem(page, "Name")).to_have_text("Another agent has this name.")


async def test_tools_are_those_of_the_configured_servers(page, open_service):
    await create(page, open_service, "Tom", "Calls tools")
    await page.get_by_role("checkbox", name="notes").check()
    await save(page)
    (tom,) = await made(open_service)
    assert tom["tuning"]["mcp_servers"] == [{"id": "notes"}]


async def test_what_others_wrote_is_text_and_nothing_else(page, open_service):
    await create(page, open_service, HOSTILE)
    await page.get_by_label("In one line").fill("<script>alert(1)</script>")
    await page.get_by_label("Description").fill(LONG * 20)
    await page.get_by_label("Questions to begin with").fill("<i>one</i>")
    await save(page)
    inside = page.locator(".builder :is(img, b, i, script)")
    assert await inside.count() == 0
    await create(page, open_service, LONG)
    for rest in ("", *(f"/{agent['id']}" for agent in await made(open_service))):
        await open_place(page, open_service, rest)
        await expect(page.get_by_text(re.compile(r"Create agent|In one line")).first).to_be_visible()
        assert await inside.count() == 0
        await page.set_viewport_size({"width": 320, "height": 700})
        wide = "document.querySelector('#place').scrollWidth <= document.querySelector('#place').clientWidth"
        assert await page.evaluate(wide)
    await page.goto(f"http://127.0.0.1:{open_service.port}/#/agents/%E0%A4%A")
    await expect(page.get_by_text("This agent is not there, or not for you.")).to_be_visible()


async def test_who_may_make_none_is_not_led_there(page, start_service):
    async with start_service(ai=AI | {"use_static_config_only": True}) as service:
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await expect(page.get_by_role("link", name="Settings")).to_be_visible()
        await expect(page.get_by_role("link", name="Agents")).to_have_count(0)
        await open_place(page, service)
        await expect(page.get_by_text("You may not make or change agents here.")).to_be_visible()


async def test_no_english_is_left_in_french(page, open_service, tmp_path):
    await note_catalogues(page)
    await page.add_init_script("localStorage.setItem('turnwise.language', 'fr')")
    await open_place(page, open_service)
    await page.get_by_label("Nom").fill("Léa")
    await page.get_by_label("Genre").select_option("Répond d'après des documents")
    assert await left_in_english(page) == []
    await page.get_by_role("button", name="Créer l'agent").click()
    await expect(page.locator(".builder h2 bdi")).to_have_text("Léa")
    await page.get_by_label("Nom", exact=True).fill(" ")
    await page.get_by_role("button", name="Enregistrer").click()
    await page.screenshot(path=tmp_path / "fr.png")
    (lea,) = await made(open_service)
    # What the values are called is the configuration's own, in whatever language.
    own = {word for field in lea["tuning"]["fields"] for word in (field["title"], *(field["enum"] or ()))}
    assert set(await left_in_english(page)) <= own
    await page.get_by_role("button", name="Supprimer").click()
    assert set(await left_in_english(page)) <= own


@pytest.mark.node
async def test_nothing_is_wrong_with_the_place_of_agents(chromium, open_service, tmp_path):
    async def walk(page: Page, look: Look, size: str) -> None:
        await create(page, open_service, f"Axel {size}", "Calls tools")
        await page.get_by_label("Name", exact=True).fill(" ")
        await page.get_by_role("button", name="Save").click()
        await expect(problem(page, "Name")).not_to_be_empty()
        await look("one")
        await page.get_by_role("button", name="Delete").click()
        await look("delete")
        await page.keyboard.press("Escape")
        await open_place(page, open_service)
        await expect(page.get_by_role("button", name="Create agent")).to_be_visible()
        await look("all")

    assert await wrong_in(chromium, tmp_path, walk) == {}
