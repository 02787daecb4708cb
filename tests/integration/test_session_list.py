"""What a person does with the list of conversations, over REST: naming, pinning, paging, finding a place."""

from urllib.parse import urlencode

import pytest

from tests.support.held_model import held_model
from tests.support.people import SECURITY, headers_of
from tests.support.service import BASE, hear, hear_until, say

pytestmark = pytest.mark.asyncio


async def change(service, session_id, status=200, **body):
    async with service.http.patch(f"{BASE}/chatbot/session/{session_id}", json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def talk(service, title, question, exchange_id="e1"):
    session_id = await service.create_session(title)
    async with service.native() as socket:
        ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": question}
        await say(socket, **ask, client_exchange_id=f"{session_id}-{exchange_id}")
        await hear_until(socket, "final")
    return session_id


async def listed(service, **query):
    return await service.get(f"/chatbot/sessions?{urlencode(query)}")


async def titles(service, **query):
    return [one["title"] for one in await listed(service, **query)]


async def test_a_session_is_renamed_and_pinned_where_it_is(service):
    old, young = await talk(service, "Old", "Where?"), await talk(service, "Young", "When?")
    before = await service.get(f"/chatbot/session/{old}")
    changed = await change(service, old, title="  Older  ")
    assert (changed["title"], changed["pinned"], changed["updated_at"]) == ("Older", False, before["updated_at"])
    assert await titles(service) == ["Young", "Older"]
    assert (await change(service, old, pinned=True))["pinned"] is True
    assert await titles(service) == ["Older", "Young"]
    async with service.native() as socket:
        ask = {"type": "ask", "session_id": old, "agent_id": "Georges", "message": "Again?"}
        await say(socket, **ask, client_exchange_id="e2")
        assert (await hear_until(socket, "final"))[-1]["session"]["title"] == "Older"
        changed = await change(service, young, title="Youngest", pinned=True)
        assert await hear(socket) == {"type": "session", "session": changed}
    await service.flush()
    assert [(one["title"], one["pinned"]) for one in await listed(service)] == [("Older", True), ("Youngest", True)]
    assert (await change(service, old, pinned=False))["title"] == "Older"
    assert await titles(service) == ["Youngest", "Older"]


async def test_preferences_that_are_replaced_leave_title_and_pin(service):
    session_id = await talk(service, "Cooking", "How long?")
    await change(service, session_id, pinned=True, title="Lentils")
    path = f"{BASE}/chatbot/session/{session_id}/preferences"
    async with service.http.put(path, json={"preferences": {"a": 1}}) as response:
        assert response.status == 200
    await service.flush()
    (one,) = await listed(service)
    assert (one["title"], one["pinned"], one["preferences"]) == ("Lentils", True, {"a": 1})


async def test_a_change_says_what_is_wrong_with_it(service):
    session_id = await service.create_session("Mine")
    for body in ({"title": " "}, {"title": "x" * 201}, {"title": "a\x00b"}, {"title": 1}, {"pinned": "yes"}, {"x": 1}):
        detail = (await change(service, session_id, 422, **body))["detail"]
        assert detail.get("field") == (None if "x" in body else next(iter(body)))
    assert (await change(service, session_id, title="x" * 200))["title"] == "x" * 200
    assert (await change(service, session_id))["title"] == "x" * 200
    assert (await change(service, "unknown", 403, title="x"))["detail"]["code"] == "session_not_found"


async def test_a_title_of_a_model_that_comes_late_gives_way_to_a_persons(start_service):
    async with held_model() as model, start_service(ai={"default_language_model": model.named}) as service:
        session_id = await service.create_session(title=None)
        async with service.native() as socket:
            ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Lentils?"}
            await say(socket, **ask, client_exchange_id="e1")
            await hear_until(socket, "final")
            await change(service, session_id, title="Mine")
            assert (await hear(socket))["session"]["title"] == "Mine"
            model.go.set()
            assert (await hear(socket))["session"]["title"] == "Mine"
        assert await titles(service) == ["Mine"]
        await service.flush()
        assert await titles(service) == ["Mine"]


async def test_the_list_goes_on_behind_a_session_whatever_becomes_of_it(service):
    ids = {title: await talk(service, title, "Well?") for title in ("A", "B", "C", "D", "E")}
    await change(service, ids["B"], pinned=True)
    first = await listed(service, limit=3)
    assert [one["title"] for one in first] == ["B", "E", "D"]
    place = {"before": first[-1]["updated_at"], "before_pinned": "false", "before_id": first[-1]["id"]}
    async with service.http.delete(f"{BASE}/chatbot/session/{ids['D']}") as response:
        assert response.status == 200
    await talk(service, "F", "New?")
    assert await titles(service, limit=3, **place) == ["C", "A"]
    pinned = {"before": first[0]["updated_at"], "before_pinned": "true", "before_id": first[0]["id"]}
    assert await titles(service, **pinned) == ["F", "E", "C", "A"]
    async with service.http.get(f"{BASE}/chatbot/sessions?before=yesterday") as response:
        assert response.status == 422


async def test_what_was_never_begun_can_be_left_out(service):
    await service.create_session(None)
    await service.create_session("Titled")
    await talk(service, None, "Where is the mill?")
    assert await titles(service) == ["Where is the mill?", "Titled", ""]
    assert await titles(service, begun="true") == ["Where is the mill?", "Titled"]


async def test_a_search_says_where_it_found_the_words(service):
    question = f"{'Before it. ' * 40}How long do <b>lentils</b> boil? {'After it. ' * 40}"
    session_id = await talk(service, "Cooking", question)
    await talk(service, "Lentils", "Something else")
    for _ in range(2):
        by_title, by_text = await listed(service, q="LENTILS", snippets="true")
        assert "found" not in by_title
        found = by_text["found"]
        assert (found["rank"], found["exchange_id"]) in {(0, f"{session_id}-e1"), (1, f"{session_id}-e1")}
        assert "<b>lentils</b>" in found["text"]
        assert found["text"][0] == found["text"][-1] == "…"
        assert len(found["text"]) <= 160
        await service.flush()
    assert all("found" not in one for one in await listed(service, q="lentils"))


async def test_one_session_is_read_as_the_list_has_it(start_service):
    async with start_service(security=SECURITY) as service:
        url = f"{BASE}/chatbot/session"
        async with service.http.post(url, json={"title": "Mine"}, headers=headers_of("ann")) as response:
            session = await response.json()
        for name, status in (("ann", 200), ("bob", 403)):
            async with service.http.get(f"{url}/{session['id']}", headers=headers_of(name)) as response:
                assert response.status == status
                if status == 200:
                    assert (await response.json())["title"] == "Mine"
