"""The list of conversations and the quick switcher on the page, against the real service."""

import json

import psycopg
import pytest
from playwright.async_api import Page, Route, expect

from tests.agentic_backend.records import rows, until
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, hear_until, say

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = '<img src=x onerror="alert(1)"> \u202egnp.exe\u202c <script>alert(2)</script> ' + "W" * 100


async def talk(service: RunningService, title: str | None, question: str) -> str:
    session_id = await service.create_session(title)
    async with service.native() as socket:
        ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": question}
        await say(socket, **ask, client_exchange_id=f"{session_id}-e1")
        await hear_until(socket, "final")
    return session_id


async def open_page(page: Page, service: RunningService, address: str = "") -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/{address}")
    await expect(page.locator("#connection")).to_have_text("Connected")


async def choose(page: Page, title: str, choice: str) -> None:
    await page.get_by_role("button", name=f"Options of {title}", exact=True).click()
    await page.get_by_role("menuitem", name=choice, exact=True).click()


async def listed(service: RunningService) -> list[tuple[str, bool]]:
    return [(one["title"], one["pinned"]) for one in await service.get("/chatbot/sessions")]


def fill(database: Database, count: int, user: str = "admin") -> None:
    """So many conversations, a day apart, the first one the newest."""
    with psycopg.connect(database.dsn) as connection:
        connection.execute(
            """INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at)
            SELECT 's' || n, %s, 'Georges', json_build_object('title', 'Conversation ' || n, 'next_rank', 2,
                'preferences', json_build_object()), now() - n * interval '1 day'
            FROM generate_series(1, %s) AS n""",
            (user, count),
        )


async def test_a_conversation_is_renamed_in_its_row(page: Page, service: RunningService) -> None:
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    await open_page(page, service, f"#/c/{session_id}")
    await choose(page, "Cooking", "Rename")
    field = page.get_by_label("Title of the conversation")
    await expect(field).to_be_focused()
    await field.fill("Never")
    await page.keyboard.press("Escape")
    await expect(page.locator(".session-title")).to_have_text("Cooking")
    # By the keyboard alone; another tab hears of it.
    other = await page.context.new_page()
    await open_page(other, service)
    await expect(page.get_by_role("button", name="Options of Cooking")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    await page.keyboard.press("Enter")
    await field.fill(HOSTILE)
    await page.keyboard.press("Enter")
    for one in (page, other):
        await expect(one.locator(".session-title")).to_have_text(HOSTILE)
        assert await one.locator(".session img, .session script").count() == 0
    await expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    assert await listed(service) == [(HOSTILE, False)]
    assert await page.evaluate("document.querySelector('.session').scrollWidth <= innerWidth")
    await other.close()


async def test_a_pinned_conversation_stands_above_the_others(page: Page, service: RunningService) -> None:
    for title in ("Old", "Middle", "Young"):
        await talk(service, title, "Well?")
    await open_page(page, service)
    titles = page.locator(".session-title")
    await expect(titles).to_have_text(["Young", "Middle", "Old"])
    await choose(page, "Old", "Pin")
    await expect(titles).to_have_text(["Old", "Young", "Middle"])
    await expect(page.locator(".group-name")).to_have_text(["Pinned", "Today"])
    await expect(page.get_by_role("button", name="Options of Old")).to_be_focused()
    await expect(page.locator("#announcer")).to_have_text("Pinned.")  # the service has it
    await page.reload()
    await expect(page.get_by_role("list", name="Pinned").locator(".session-title")).to_have_text(["Old"])
    await choose(page, "Old", "Unpin")
    await expect(page.locator(".group-name")).to_have_text(["Today"])
    await expect(page.locator("#announcer")).to_have_text("No longer pinned.")
    assert ("Old", False) in await listed(service)


async def test_a_delete_waits_until_it_cannot_be_undone(
    page: Page, service: RunningService, database: Database
) -> None:
    session_id = await talk(service, "Mine", "Well?")
    await talk(service, "Other", "Well?")
    await open_page(page, service, f"#/c/{session_id}")
    await choose(page, "Mine", "Delete")
    await expect(page.locator(".session-title")).to_have_text(["Other"])
    await expect(page.locator("#undo")).to_contain_text("Deleted “Mine”.")
    assert len(await listed(service)) == 2
    await expect(page.get_by_role("button", name="Undo")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator(".session-title")).to_have_text(["Other", "Mine"])
    await expect(page.get_by_role("button", name="Options of Mine")).to_be_focused()
    await choose(page, "Mine", "Delete")
    # The page that is left deletes it as it goes.
    await page.reload()
    await expect(page.locator(".session-title")).to_have_text(["Other"])
    await until(lambda: rows(database.dsn, "SELECT session_data->>'title' FROM session") == [("Other",)])


async def test_conversations_are_listed_by_days_and_page_by_page(
    page: Page, service: RunningService, database: Database
) -> None:
    fill(database, 120)
    asked: list[str] = []

    async def note(route: Route) -> None:
        asked.append(route.request.url)
        await route.continue_()

    await page.route("**/chatbot/sessions*", note)
    await open_page(page, service)
    rows = page.locator(".session")
    await expect(rows).to_have_count(50)
    assert (await page.locator(".group-name").all_text_contents())[:2] == ["Yesterday", "Previous 7 days"]
    assert len(asked) == 1
    # Others come and go meanwhile: nothing is skipped, nothing is there twice.
    with psycopg.connect(database.dsn) as connection:
        connection.execute("DELETE FROM session WHERE session_id IN ('s3', 's50')")
    await talk(service, "New", "Well?")
    await rows.last.scroll_into_view_if_needed()
    await expect(rows).to_have_count(100)
    await rows.last.scroll_into_view_if_needed()
    await expect(rows).to_have_count(120)
    assert len(asked) == 3
    titles = await page.locator(".session-title").all_text_contents()
    assert titles == [f"Conversation {n}" for n in range(1, 121)]
    # One that no page of the list had is opened by its address.
    await page.goto("about:blank")
    await open_page(page, service, "#/c/s119")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Conversation 119")
    await expect(page.locator(".session a[aria-current] .session-title")).to_have_text("Conversation 119")


async def test_a_long_list_has_few_rows_at_a_time(page: Page, service: RunningService, database: Database) -> None:
    fill(database, 420)
    await open_page(page, service)
    rows = page.locator(".session")
    for last in range(100, 500, 50):
        await rows.last.scroll_into_view_if_needed()
        await expect(page.get_by_role("link", name=f"Conversation {min(last, 420)} ")).to_be_attached()
        assert await rows.count() <= 200
    await expect(rows.last).to_contain_text("Conversation 420")
    # Back at the top the first ones are there again, in their order.
    await page.locator("#sidebar nav").first.evaluate("(nav) => nav.scrollTo(0, 0)")
    await expect(rows.first).to_contain_text("Conversation 1")
    await expect(rows.first).to_be_in_viewport()
    assert await rows.count() <= 200


async def test_a_search_shows_where_the_words_stand_and_leads_there(page: Page, service: RunningService) -> None:
    session_id = await talk(service, "Cooking", "How long do <b>lentils</b> boil?")
    async with service.native() as socket:
        for number in range(2, 9):
            ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": f"Number {number}. " * 40}
            await say(socket, **ask, client_exchange_id=f"e{number}")
            await hear_until(socket, "final")
    await open_page(page, service)
    await page.get_by_label("Search your conversations").fill("<b>LENTILS")
    snippet = page.locator(".session .snippet")
    await expect(snippet).to_contain_text("How long do <b>lentils</b> boil?")
    await page.get_by_label("Search your conversations").fill("lentils")
    await expect(snippet.locator("mark").first).to_have_text("lentils")
    await page.locator(".session a").click()
    question = page.locator(".question").first
    await expect(question).to_contain_text("lentils")
    await expect(question).to_be_in_viewport()
    await expect(page.locator(".turn").first).to_be_focused()


async def test_the_switcher_leads_anywhere_by_the_keyboard_alone(page: Page, service: RunningService) -> None:
    await talk(service, "Holidays", "Where is it warm?")
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    await open_page(page, service)
    await expect(page.locator(".session")).to_have_count(2)
    await page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Search conversations")
    await expect(field).to_be_focused()
    options = page.get_by_role("option")
    places = ["Libraries", "Usage", "Live", "Feedback", "Settings"]
    await expect(options.locator(".session-title")).to_have_text(["New conversation", *places, "Cooking", "Holidays"])
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await expect(options.nth(2)).to_have_attribute("aria-selected", "true")
    await page.keyboard.type("lentils")
    await expect(options.locator(".session-title")).to_have_text(["Cooking"])
    await expect(options.locator("mark").first).to_have_text("lentils")
    await page.keyboard.press("Enter")
    await expect(page.locator("#switcher")).to_be_hidden()
    await expect(page.locator(".question")).to_have_text("How long do lentils boil?")
    assert f"#/c/{session_id}" in page.url
    await page.keyboard.press("Control+k")
    await page.keyboard.press("Enter")
    await expect(page.locator("#welcome")).to_be_visible()
    await page.keyboard.press("Control+k")
    await page.keyboard.press("Escape")
    await expect(page.locator("#switcher")).to_be_hidden()


async def test_what_was_never_asked_does_not_pile_up(page: Page, service: RunningService) -> None:
    await service.create_session(None)
    session_id = await service.create_session(None)
    await page.goto(f"http://127.0.0.1:{service.port}/#/c/{session_id}")
    await expect(page.locator(".session")).to_have_count(1)
    await page.get_by_label("Your message").fill("What is a quokka? And where?\nA second line.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".session-title")).to_have_text(["What is a quokka? And where?"])
    await expect(page.get_by_role("heading", level=1)).to_have_text("What is a quokka? And where?")


async def test_the_list_in_french(page: Page, service: RunningService) -> None:
    await page.add_init_script(f"localStorage.setItem('turnwise.language', {json.dumps('fr')})")
    await talk(service, "Cuisine", "Combien de temps ?")
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator(".group-name")).to_have_text(["Aujourd'hui"])
    await page.get_by_role("button", name="Options de Cuisine").click()
    await page.get_by_role("menuitem", name="Épingler").click()
    await expect(page.locator(".group-name")).to_have_text(["Épinglées"])
    await expect(page.locator("#announcer")).to_have_text("Épinglée.")  # the service has it
    async with service.http.get(f"{BASE}/chatbot/sessions") as response:
        assert (await response.json())[0]["pinned"] is True
