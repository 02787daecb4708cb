"""The list of sessions, its pages and its search, and export, over REST."""

import json

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, hear_until, say


async def talk(service, title, *questions):
    session_id = await service.create_session(title)
    async with service.native() as socket:
        for number, question in enumerate(questions):
            ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": question}
            await say(socket, **ask, client_exchange_id=f"{session_id}-{number}")
            await hear_until(socket, "final")
    return session_id


async def listed(service, query=""):
    return [session["title"] for session in await service.get(f"/chatbot/sessions{query}")]


async def test_pages_and_search_with_and_without_what_is_committed(service):
    for title in ("One", "Two", None):
        await talk(service, title, f"What about {title or 'ostriches'}?")
    for _ in range(2):
        assert await listed(service) == ["What about ostriches?", "Two", "One"]
        assert await listed(service, "?limit=1") == ["What about ostriches?"]
        assert await listed(service, "?limit=2&offset=1") == ["Two", "One"]
        assert await listed(service, "?q=ostri") == ["What about ostriches?"]
        assert await listed(service, "?q=ABOUT%20two") == ["Two"]
        assert await listed(service, "?q=nothing%20of%20it") == []
        await service.service.running.persistence.flush(PATIENCE_S)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "offset=-1", "offset=2147483648", "q=%00", f"q={'x' * 201}"]
)
async def test_what_is_no_page_is_refused(service, query):
    async with service.http.get(f"{BASE}/chatbot/sessions?{query}") as response:
        assert response.status == 422


async def test_export_as_json_is_the_session_and_its_history(service):
    session_id = await talk(service, "One: two", "First?", "Second?")
    async with service.http.get(f"{BASE}/chatbot/session/{session_id}/export?format=json") as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert response.headers["Content-Disposition"].startswith('attachment; filename="conversation-One-two.json"')
        exported = json.loads(await response.text())
    assert exported["messages"] == await service.history(session_id)
    assert (exported["session"]["id"], exported["session"]["title"]) == (session_id, "One: two")


async def test_export_as_markdown_is_to_be_read(service):
    session_id = await talk(service, "A title", "First?")
    async with service.http.get(f"{BASE}/chatbot/session/{session_id}/export") as response:
        assert response.content_type == "text/markdown"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        text = await response.text()
    assert text.startswith("# A title\n\n")
    assert "\n## Question\n" in text
    assert "\n## Answer of Georges\n" in text
    assert "\nFirst?\n" in text


@pytest.mark.parametrize("query", ["format=pdf", "format="])
async def test_there_are_two_formats(service, query):
    session_id = await service.create_session()
    async with service.http.get(f"{BASE}/chatbot/session/{session_id}/export?{query}") as response:
        assert response.status == 422


async def test_a_long_history_is_compressed_and_the_same(service):
    session_id = await talk(service, "Long", *(f"Question {number} " * 50 for number in range(3)))
    await service.service.running.persistence.flush(PATIENCE_S)
    path = f"{BASE}/chatbot/session/{session_id}/history"
    answers = {}
    for encoding in ("identity", "gzip"):
        async with service.http.get(path, headers={"Accept-Encoding": encoding}) as response:
            answers[encoding] = await response.read()
            assert response.headers.get("Content-Encoding") == (None if encoding == "identity" else encoding)
            assert (int(response.headers["Content-Length"]) < len(answers["identity"])) == (encoding == "gzip")
    assert answers["gzip"] == answers["identity"]
