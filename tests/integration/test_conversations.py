"""The list of sessions, its pages and its search, and export, over REST."""

import asyncio
import gzip
import json
import socket

import aiohttp
import pytest
import zstandard

from backend_kit.wire import dumps
from tests.agentic_backend.records import history_of, turn, until
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, hear_until, hits, say

DECODE = {
    "identity": bytes,
    "gzip": gzip.decompress,
    "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
}


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
        await service.flush()


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
    await service.flush()
    path = f"{BASE}/chatbot/session/{session_id}/history"
    answers = {}
    for encoding in ("identity", "gzip"):
        async with service.http.get(path, headers={"Accept-Encoding": encoding}) as response:
            answers[encoding] = await response.read()
            assert response.headers.get("Content-Encoding") == (None if encoding == "identity" else encoding)
            assert (int(response.headers["Content-Length"]) < len(answers["identity"])) == (encoding == "gzip")
    assert answers["gzip"] == answers["identity"]


async def long_conversation(service, turns=6, chars=60_000):
    """A session whose history is several pages, most of which wait for Postgres or have just been committed."""
    persistence = service.instances[0].running.persistence
    session = await persistence.store.get(await service.create_session("Long"), "admin")
    session_id = session.id
    for number in range(turns):
        record = turn(session, f"x{number}", f"question {number}", "é" * chars)
        await persistence.log.append(record)
        session = record.session
    return session_id


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
async def test_a_long_history_and_its_export_come_whole_and_byte_for_byte(service, encoding):
    session_id = await long_conversation(service)
    persistence = service.instances[0].running.persistence
    await persistence.flush(PATIENCE_S)
    stored = b",".join(await history_of(persistence.store, session_id, "admin"))
    session = (await persistence.store.get(session_id, "admin")).wire()
    for path, expected in (
        ("history", b"[" + stored + b"]"),
        ("export?format=json", b'{"session":' + dumps(session) + b',"messages":[' + stored + b"]}"),
    ):
        url = f"http://127.0.0.1:{service.port}{BASE}/chatbot/session/{session_id}/{path}"
        async with (
            aiohttp.ClientSession(auto_decompress=False) as http,
            http.get(url, headers={"Accept-Encoding": encoding}) as response,
        ):
            assert response.headers.get("Content-Encoding", "identity") == encoding
            assert response.headers["Transfer-Encoding"] == "chunked"
            assert DECODE[encoding](await response.read()) == expected
    async with service.http.get(f"{BASE}/chatbot/session/{session_id}/export") as response:
        assert (await response.text()).count("\n## Question\n") == 6
    assert [len(one["parts"][0]["text"]) for one in await service.history(session_id, "?limit=2&text_limit=4")] == [
        4,
        4,
    ]


@pytest.mark.one_instance("what the balancer reads ahead hides the reader")
async def test_a_reader_that_stops_in_the_middle_is_cut_off_and_counted(start_service):
    async with start_service(deadlines={"send_s": 1}) as service:
        session_id = await long_conversation(service, turns=12, chars=400_000)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with sock:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", service.port))
            await loop.sock_sendall(
                sock, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % f"{BASE}/chatbot/session/{session_id}/history".encode()
            )
            await until(lambda: hits(service, "answers_unread") == 1)
        assert [each.running.chat.answers.gate.running for each in service.instances] == [0] * len(service.instances)
