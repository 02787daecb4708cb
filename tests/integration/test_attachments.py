"""Attachments through both services: given, asked about, listed, limited, and gone everywhere with their session."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from aiohttp import web

from backend_kit.http import listen
from tests.agentic_backend.records import until
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow, start_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hear_until, hits, say
from tests.support.small_disk import NoRight, fill, small_disk

PUMPS = "# Pumps\n\n## Cleaning\n\nRinse the filter once a week with warm water.\n"
BEES = "# Bees\n\nBees make honey from nectar.\n"
QUESTION = "How often is the filter rinsed?"


def settings(port: int, **ai: Any) -> dict[str, Any]:
    """The agentic service's side: Rico on that knowledge flow."""
    agents = [{"name": "Rico", "class_path": "agentic_backend.agent.rag"}]
    return {"ai": {"knowledge_flow_url": f"http://127.0.0.1:{port}{KNOWLEDGE_BASE}", "agents": agents, **ai}}


@pytest.fixture
async def knowledge(database: Database, mock_llm: MockModel) -> AsyncIterator[RunningKnowledgeFlow]:
    async with start_on(database, mock_llm.base_url)(
        processing={"chunk_size_chars": 150, "chunk_overlap_chars": 0}
    ) as running:
        yield running


@asynccontextmanager
async def both(
    start_service: StartService, database: Database, mock_llm: MockModel, **ai: Any
) -> AsyncIterator[tuple[RunningService, RunningKnowledgeFlow]]:
    """Both services with users who sign in."""
    async with (
        start_on(database, mock_llm.base_url)(security=SECURITY) as knowledge,
        start_service(**settings(knowledge.port, **ai), security=SECURITY) as service,
    ):
        yield service, knowledge


def form(name: str | None, data: bytes | str, **fields: str) -> aiohttp.FormData:
    made = aiohttp.FormData(quote_fields=False)
    for field, value in fields.items():
        made.add_field(field, value)
    made.add_field("file", io.BytesIO(data.encode() if isinstance(data, str) else data), filename=name)
    return made


async def upload(
    service: RunningService,
    session_id: str,
    name: str | None = "pumps.md",
    data: bytes | str = PUMPS,
    *,
    user: str | None = None,
) -> tuple[int, Any]:
    """Status, and the body or the `detail` of a refusal."""
    headers = {} if user is None else headers_of(user)
    body = form(name, data, session_id=session_id)
    async with service.http.post(f"{BASE}/chatbot/upload", data=body, headers=headers) as response:
        answer = await response.json()
        return response.status, answer if response.status == 200 else answer["detail"]


async def call(
    service: RunningService, method: str, path: str, user: str | None = None, **options: Any
) -> tuple[int, str]:
    headers = {} if user is None else headers_of(user)
    async with service.http.request(method, f"{BASE}/chatbot/{path}", headers=headers, **options) as response:
        return response.status, await response.text()


async def ask(service: RunningService, session_id: str, **context: Any) -> dict[str, Any]:
    async with service.native() as socket:
        frame = {"session_id": session_id, "agent_id": "Rico", "message": QUESTION, "runtime_context": context}
        await say(socket, type="ask", **frame)
        message: dict[str, Any] = (await hear_until(socket, "final"))[-1]["messages"][-1]
        return message


def sql(database: Database, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(statement.encode()).fetchall()


async def stored(database: Database) -> tuple[int, int, int]:
    """Attachments, leftovers, and documents in the index."""
    counts = [
        (await asyncio.to_thread(sql, database, f"SELECT count(*) FROM {table}"))[0][0]  # noqa: S608 - names of ours
        for table in ("session_attachments", "attachment_leftover", '"turnwise-chunks".documents')
    ]
    return counts[0], counts[1], counts[2]


async def settled(database: Database, *counts: int) -> None:
    """Wait until attachments, leftovers and documents are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while await stored(database) != counts:  # noqa: ASYNC110 # what is waited for happens in Postgres
            await asyncio.sleep(0.02)


async def test_rico_cites_an_attachment_in_its_session_and_in_no_other(
    start_service: StartService, knowledge: RunningKnowledgeFlow
) -> None:
    async with start_service(**settings(knowledge.port)) as service:
        session_id, other = [await service.create_session(agent_id="Rico") for _ in range(2)]
        status, given = await upload(service, session_id)
        assert status == 200
        attachment_id = given.pop("attachment_id")
        assert given.pop("session")["id"] == session_id
        attached_at = given.pop("attached_at")
        assert given == {
            "session_id": session_id,
            "filename": "pumps.md",
            "mime": "text/markdown",
            "size_bytes": len(PUMPS),
            "preview_chars": len(PUMPS),
        }
        answer = await ask(service, session_id)
        text, link = answer["parts"]
        assert text["text"].startswith("Rinse the filter once a week with warm water. [1]")
        assert (link["file_name"], link["kind"]) == ("pumps.md", "citation")
        passage = await service.get(link["href"].replace("#chunk=", "/chunks/"))
        assert passage["text"] == PUMPS.rstrip()
        for session, scope in (
            (other, {}),
            (session_id, {"search_rag_scope": "corpus_only"}),
            (session_id, {"include_session_scope": False}),
        ):
            assert "sources" not in (await ask(service, session, **scope))["metadata"]

        summary = f"upload/{attachment_id}/summary"
        status, body = await call(service, "GET", f"{summary}?session_id={session_id}")
        assert (status, json.loads(body)["summary_md"]) == (200, PUMPS)
        assert (await call(service, "GET", f"{summary}?session_id={other}"))[0] == 404
        listed = {session["id"]: session for session in await service.get("/chatbot/sessions")}
        (file,) = listed[session_id]["attachments"]
        # One is the clock of the service, the other that of the database.
        apart = datetime.fromisoformat(file.pop("attached_at")) - datetime.fromisoformat(attached_at)
        assert abs(apart) < timedelta(hours=1)
        assert file == {"id": attachment_id, "name": "pumps.md", "size_bytes": len(PUMPS), "mime": "text/markdown"}
        assert listed[session_id]["file_names"] == ["pumps.md"]
        assert listed[other]["attachments"] == listed[other]["file_names"] == []


async def test_deleting_one_takes_it_from_the_list_and_from_knowledge_flow(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    async with start_service(**settings(knowledge.port)) as service:
        session_id = await service.create_session(agent_id="Rico")
        ids = [
            (await upload(service, session_id, name, text))[1]["attachment_id"]
            for name, text in (("pumps.md", PUMPS), ("bees.md", BEES))
        ]
        assert await stored(database) == (2, 0, 2)
        path = f"upload/{ids[0]}?session_id={session_id}"
        assert await call(service, "DELETE", path) == (204, "")
        assert (await call(service, "DELETE", path))[0] == 404
        await settled(database, 1, 0, 1)
        (listed,) = await service.get("/chatbot/sessions")
        assert listed["file_names"] == ["bees.md"]
        sources = (await ask(service, session_id))["metadata"]["sources"]
        assert {source["file_name"] for source in sources} == {"bees.md"}
        # Its name is free again.
        assert (await upload(service, session_id))[0] == 200


async def test_a_session_goes_with_its_attachments_everywhere(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    async with start_service(**settings(knowledge.port)) as service:
        session_id, other = [await service.create_session(agent_id="Rico") for _ in range(2)]
        for session, name in ((session_id, "a.md"), (session_id, "b.md"), (other, "a.md")):
            assert (await upload(service, session, name))[0] == 200
        assert await call(service, "DELETE", f"session/{session_id}") == (200, "true")
        await settled(database, 1, 0, 1)
        hits = await knowledge.search(QUESTION, session_id=session_id)
        assert hits == []
        assert len(await knowledge.search(QUESTION, session_id=other)) == 1


async def test_what_knowledge_flow_missed_is_deleted_after_a_restart(
    start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with (
        start_on(database, mock_llm.base_url)() as knowledge,
        start_service(**settings(knowledge.port)) as service,
    ):
        session_id = await service.create_session(agent_id="Rico")
        assert (await upload(service, session_id))[0] == 200
    closed = listen("127.0.0.1", 0)
    nowhere = closed.getsockname()[1]
    closed.close()
    async with start_service(**settings(nowhere)) as service:
        assert await call(service, "DELETE", f"session/{session_id}") == (200, "true")
        assert await stored(database) == (0, 1, 1)
    async with (
        start_on(database, mock_llm.base_url)() as knowledge,
        start_service(**settings(knowledge.port)) as service,
    ):
        # Its owner is seen again.
        assert await service.get("/chatbot/sessions") == []
        await service.instances[0].running.chat.attachments.leftovers.look()
        assert await stored(database) == (0, 0, 0)


async def test_attachments_are_their_owners_alone(
    start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with both(start_service, database, mock_llm) as (service, _):
        _, body = await call(service, "POST", "session", "ann", json={"agent_id": "Rico"})
        session_id = json.loads(body)["id"]
        given = (await upload(service, session_id, user="ann"))[1]
        for of_session in ("", f"?session_id={session_id}"):
            for method, path in (("GET", "/summary"), ("DELETE", "")):
                answer = await call(service, method, f"upload/{given['attachment_id']}{path}{of_session}", "bob")
                assert answer == await call(service, method, f"upload/unknown{path}{of_session}", "bob")
                assert (answer[0], json.loads(answer[1])["detail"]["code"]) == (404, "attachment_not_found")
        foreign = await upload(service, session_id, "b.md", user="bob")
        assert foreign == await upload(service, "AAAAAAAAAAA", "b.md", user="bob")
        assert (foreign[0], foreign[1]["code"]) == (403, "session_not_found")
        assert await stored(database) == (1, 0, 1)
        # With the token of its owner, it goes in knowledge flow too.
        assert (await call(service, "DELETE", f"session/{session_id}", "ann"))[0] == 200
        await settled(database, 0, 0, 0)


async def test_files_that_may_not_be_attached(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    limits = {"max_attached_files_per_user": 2, "max_attached_file_size_mb": 1}
    async with start_service(**settings(knowledge.port, **limits)) as service:
        one, two = [await service.create_session(agent_id="Rico") for _ in range(2)]

        async def refused(*given: Any) -> tuple[int, str]:
            status, detail = await upload(service, *given)
            return status, detail["code"]

        assert await refused(one, "", PUMPS) == (400, "missing_filename")
        assert await refused(one, "../..", PUMPS) == (400, "missing_filename")
        assert await refused("", "a.md", PUMPS) == (422, "bad_request")
        assert await refused(one, "a.md", bytes(1024 * 1024 + 1)) == (400, "attachment_too_large")
        assert await refused(one, "a.md", bytes(5 * 1024 * 1024)) == (400, "attachment_too_large")
        status, detail = await upload(service, one, "a.exe", b"MZ")
        assert (status, detail) == (
            400,
            {"code": "upload_processing_failed", "message": "Files of this type are not supported."},
        )
        assert (await upload(service, one, "a.md"))[0] == 200
        assert await refused(one, "a.md", BEES) == (409, "attachment_duplicate")
        assert (await upload(service, two, "a.md"))[0] == 200
        assert await refused(one, "b.md", BEES) == (400, "attachment_limit_reached")
        status, body = await call(service, "POST", "upload", json={"session_id": one})
        assert (status, json.loads(body)["detail"]["code"]) == (422, "bad_request")
        assert await stored(database) == (2, 0, 2)


async def test_a_body_over_the_limit_is_cut_while_it_comes(
    start_service: StartService, knowledge: RunningKnowledgeFlow
) -> None:
    limits = {"max_attached_file_size_mb": 1}
    async with start_service(**settings(knowledge.port, **limits)) as service:
        session_id = await service.create_session(agent_id="Rico")
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        head = (
            f"POST {BASE}/chatbot/upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        )
        part = b'--b\r\nContent-Disposition: form-data; name="session_id"\r\n\r\n%b\r\n' % session_id.encode()
        part += b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.md"\r\n\r\n'
        writer.write(head.encode() + b"%x\r\n%s\r\n" % (len(part), part))
        answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
        piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        sent = 0
        while not answer.done() and sent < 200 * 1024 * 1024:
            writer.write(piece)
            sent += len(piece)
            await asyncio.wait({answer}, timeout=0)
            if not answer.done():
                await writer.drain()
        assert (await answer).startswith(b"HTTP/1.1 400")
        assert b"attachment_too_large" in await reader.readuntil(b"}}")
        writer.close()
        assert hits(service, "max_attached_file_size_mb") == 1


async def test_a_race_for_the_last_place_has_one_winner(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    async with start_service(**settings(knowledge.port, max_attached_files_per_user=3)) as service:
        session_id = await service.create_session(agent_id="Rico")
        for name in ("a.md", "b.md"):
            assert (await upload(service, session_id, name))[0] == 200
        async with asyncio.TaskGroup() as group:
            races = [group.create_task(upload(service, session_id, f"r{number}.md")) for number in range(8)]
        assert sorted(race.result()[0] for race in races) == [200] + [400] * 7
        await settled(database, 3, 0, 3)
        assert hits(service, "max_attached_files_per_user") == 7


async def test_a_race_of_one_name_has_one_winner(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    async with start_service(**settings(knowledge.port)) as service:
        session_id = await service.create_session(agent_id="Rico")
        async with asyncio.TaskGroup() as group:
            races = [group.create_task(upload(service, session_id)) for _ in range(4)]
        assert sorted(race.result()[0] for race in races) == [200, 409, 409, 409]
        await settled(database, 1, 0, 1)


async def test_without_attachments_or_without_knowledge_flow(start_service: StartService, database: Database) -> None:
    async with start_service(**settings(1, max_attached_files_per_user=0)) as service:
        session_id = await service.create_session(agent_id="Rico")
        status, detail = await upload(service, session_id)
        assert (status, detail["code"]) == (501, "attachments_disabled")
    async with start_service(**settings(1)) as service:
        status, detail = await upload(service, session_id)
        assert (status, detail["code"]) == (503, "kf_unavailable")
        assert (await service.get("/chatbot/sessions"))[0]["attachments"] == []


@asynccontextmanager
async def way_to(port: int, taken: asyncio.Event, go_on: asyncio.Event) -> AsyncIterator[int]:
    """A port that passes all on to another; the answer to a POST, which has been `taken`, comes when it may `go_on`."""

    async def pass_on(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name != "Transfer-Encoding"}
        url = f"http://127.0.0.1:{port}{request.rel_url}"
        async with http.request(request.method, url, data=await request.read(), headers=headers) as answer:
            body = await answer.read()
        if request.method == "POST":
            taken.set()
            await go_on.wait()
        return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pass_on)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession() as http:
        await runner.setup()
        sock = listen("127.0.0.1", 0)
        await web.SockSite(runner, sock).start()
        try:
            yield sock.getsockname()[1]
        finally:
            await runner.cleanup()


async def test_a_session_that_is_deleted_meanwhile_keeps_nothing(
    start_service: StartService, knowledge: RunningKnowledgeFlow, database: Database
) -> None:
    taken, go_on = asyncio.Event(), asyncio.Event()
    async with way_to(knowledge.port, taken, go_on) as port, start_service(**settings(port)) as service:
        session_id = await service.create_session(agent_id="Rico")
        async with asyncio.TaskGroup() as group:
            uploading = group.create_task(upload(service, session_id))
            await taken.wait()
            assert await call(service, "DELETE", f"session/{session_id}") == (200, "true")
            go_on.set()
        status, detail = uploading.result()
        assert (status, detail["code"]) == (403, "session_not_found")
        await until(
            lambda: not any(each.running.chat.attachments.leftovers._now.is_set() for each in service.instances)
        )
        await settled(database, 0, 0, 0)


async def sent_in_part(service: RunningService, *parts: bytes) -> bytes:
    """The head of the answer to a body that stays unfinished after these parts, of which it declares 20 MB."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = (
        f"POST {BASE}/chatbot/upload HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    writer.write(head.encode() + b"".join(parts))
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.readuntil(b"}}")
    writer.close()
    return answer


def field_of(name: str, value: str) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.md"\r\n\r\n'


async def test_nothing_of_a_file_is_stored_before_its_session_is_known(
    start_service: StartService, tmp_path: Path
) -> None:
    async with start_service(**settings(1, attachments_dir=str(tmp_path / "uploads"))) as service:
        # Refused at the file's first byte, though all of it is still to come.
        answer = await sent_in_part(service, field_of("session_id", "AAAAAAAAAAA"), FILE)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"session_not_found" in answer
        # A file in front of its session may have as much as the form's fields.
        answer = await sent_in_part(service, FILE, bytes(64 * 1024 + 1))
        assert answer.startswith(b"HTTP/1.1 422 ")
        assert b'"field":"session_id"' in answer
        assert descriptors_in(tmp_path / "uploads") == 0


async def test_a_full_disk_is_said_as_such_and_a_directory_that_was_cleared_away_is_made_again(
    start_service: StartService, knowledge: RunningKnowledgeFlow, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither is the fault of the file, which is what was answered before."""
    place = tmp_path / "disk"
    try:
        with small_disk(place, 4) as disk:
            uploads = disk / "uploads"
            async with start_service(**settings(knowledge.port, attachments_dir=str(uploads))) as service:
                status, body = await call(service, "POST", "session", None, json={"agent_id": "Rico"})
                session_id = json.loads(body)["id"]
                uploads.rmdir()
                assert (await upload(service, session_id, "a.md"))[0] == 200
                filler = fill(disk)
                status, detail = await upload(service, session_id, "b.md", BEES)
                assert (status, detail["code"]) == (503, "storage_full")
                assert "No space left on device; see ai.attachments_dir" in caplog.text
                filler.unlink()
                assert (await upload(service, session_id, "b.md", BEES))[0] == 200
    except NoRight:
        pytest.skip("no right to mount a file system")


def descriptors_in(directory: Path) -> int:
    """Open files below a directory, those without a name there too."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(one.readlink()).startswith(str(directory))
    return found


@pytest.mark.one_instance("its bound is of one process")
@pytest.mark.parametrize(("user", "at_once"), [("ann", 2), (None, 6)], ids=["of one user", "of all, who are one"])
async def test_files_on_disk_are_bounded_by_user_and_closed(
    start_service: StartService,
    knowledge: RunningKnowledgeFlow,
    tmp_path: Path,
    user: str | None,
    at_once: int,
) -> None:
    """Without authentication all callers are one user, and must not wait as one."""
    taken, go_on = asyncio.Event(), asyncio.Event()
    # More than these places at a time, which the admission of routes would not let through.
    signed_in = {} if user is None else {"security": SECURITY, "requests": {"at_once": 8}}
    async with (
        way_to(knowledge.port, taken, go_on) as port,
        start_service(**settings(port, attachments_dir=str(tmp_path / "uploads")), **signed_in) as service,
    ):
        status, body = await call(service, "POST", "session", user, json={"agent_id": "Rico"})
        assert status == 200
        session_id = json.loads(body)["id"]
        gate = service.service.running.chat.attachments.gate
        async with asyncio.TaskGroup() as group:
            uploads = [group.create_task(upload(service, session_id, f"{number}.md", user=user)) for number in range(6)]
            await taken.wait()
            await until(lambda: (gate.running, gate.waiting) == (at_once, 6 - at_once))
            assert descriptors_in(tmp_path / "uploads") == at_once
            go_on.set()
        assert [one.result()[0] for one in uploads] == [200] * 6
        assert (gate.running, descriptors_in(tmp_path / "uploads")) == (0, 0)


async def test_a_small_file_may_come_before_its_session(
    start_service: StartService, knowledge: RunningKnowledgeFlow
) -> None:
    async with start_service(**settings(knowledge.port)) as service:
        session_id = await service.create_session(agent_id="Rico")
        made = aiohttp.FormData(quote_fields=False)
        made.add_field("file", io.BytesIO(PUMPS.encode()), filename="pumps.md")
        made.add_field("session_id", session_id)
        async with service.http.post(f"{BASE}/chatbot/upload", data=made) as response:
            assert (response.status, (await response.json())["size_bytes"]) == (200, len(PUMPS))
