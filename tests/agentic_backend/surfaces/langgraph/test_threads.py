"""Threads over a running service, by LangGraph's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError, UnprocessableEntityError

from agentic_backend.surfaces.langgraph.names import assistant_id_of
from tests.agentic_backend.records import rows, turn
from tests.support.held_model import held_model
from tests.support.people import SECURITY, headers_of
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, start_service

__all__ = ["start_service"]

pytestmark = pytest.mark.one_instance("a look into its storage")

MADE = {"thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "status", "config", "values"}
RUN = {*MADE, "error", "interrupts"}
DERIVED = {"graph_id": "Georges", "assistant_id": assistant_id_of("Georges")}
QUESTION = {"stage": "review", "question": "Go?", "interrupt_id": "i1", "checkpoint_id": "k:1", "choices": []}
AWAITS = {"agent_id": "Georges", "extras": {"status": "awaiting_human", "awaiting": {"payload": QUESTION, "seq": 3}}}
FAILED = {"agent_id": "Georges", "extras": {"error": "llm_timeout"}}


@asynccontextmanager
async def client_of(service: RunningService, user: str) -> AsyncIterator[LangGraphClient]:
    """The client of a user."""
    url = f"http://127.0.0.1:{service.port}"
    async with get_client(url=url, api_key=None, headers=headers_of(user)) as client:
        yield client


@pytest.fixture
async def service(start_service: StartService) -> AsyncIterator[RunningService]:
    async with start_service(security=SECURITY) as running:
        yield running


@pytest.fixture
async def ann(service: RunningService) -> AsyncIterator[LangGraphClient]:
    async with client_of(service, "ann") as client:
        yield client


@pytest.fixture
async def bob(service: RunningService) -> AsyncIterator[LangGraphClient]:
    async with client_of(service, "bob") as client:
        yield client


async def ask(service: RunningService, thread_id: str, message: str = "Hello", user: str = "ann") -> str:
    """Ask in a thread; what came."""
    frame = {"type": "ask", "session_id": thread_id, "agent_id": "Georges", "message": message}
    url = f"{BASE}/chatbot/query/stream"
    async with service.http.post(url, json=frame, headers=headers_of(user)) as response:
        return await response.text()


async def keep(service: RunningService, thread_id: str, metadata: dict[str, Any]) -> None:
    """Store a turn of the thread that ended with this."""
    session = await service.service.running.persistence.store.get(thread_id, "ann")
    assert session is not None
    record = turn(session.with_agent("Georges"), f"{thread_id}-{session.next_rank}", metadata=metadata)
    await service.service.running.persistence.log.append(record)


async def test_a_thread_is_made_read_changed_and_deleted(ann: LangGraphClient, database: Database) -> None:
    made: Any = await ann.threads.create(metadata={"user": "u", "none": None}, if_exists="do_nothing")
    assert made.keys() == MADE
    assert UUID(made["thread_id"]).version == 4
    assert (made["status"], made["values"], made["config"]) == ("idle", None, {})
    assert made["metadata"] == {"user": "u", "none": None}
    assert await ann.threads.get(made["thread_id"]) == made
    changed = await ann.threads.update(made["thread_id"], metadata={"user": {"a": 1}, "title": None})
    assert changed["metadata"] == {"user": {"a": 1}, "none": None, "title": None}
    assert str(changed["updated_at"]) > str(made["updated_at"])
    assert await ann.threads.get(made["thread_id"]) == changed
    headers = {"Prefer": "return=minimal"}
    nothing: Any = await ann.threads.update(made["thread_id"], metadata={"x": 1}, headers=headers)
    assert nothing is None
    assert await ann.threads.update(made["thread_id"], metadata={}) == await ann.threads.get(made["thread_id"])
    await ann.threads.delete(made["thread_id"])
    with pytest.raises(NotFoundError, match=f"Thread with ID {made['thread_id']} not found"):
        await ann.threads.get(made["thread_id"])
    deleted = "SELECT object_id FROM audit_event WHERE action = 'session_deleted'"
    assert rows(database.dsn, deleted) == [(made["thread_id"],)]


async def test_a_client_chooses_its_thread(ann: LangGraphClient, bob: LangGraphClient) -> None:
    chosen = str(uuid4())
    made = await ann.threads.create(thread_id=chosen, metadata={"a": 1})
    assert made["thread_id"] == chosen
    with pytest.raises(ConflictError):
        await ann.threads.create(thread_id=chosen)
    with pytest.raises(ConflictError):
        await ann.threads.create(thread_id=chosen, if_exists="raise")
    assert await ann.threads.create(thread_id=chosen.upper(), metadata={"b": 1}, if_exists="do_nothing") == made
    for if_exists in ("raise", "do_nothing"):
        with pytest.raises(ConflictError):
            await bob.threads.create(thread_id=chosen, if_exists=if_exists)
    # Those of a user and a name are made by doors alone.
    with pytest.raises(ConflictError):
        await ann.threads.create(thread_id=str(uuid5(UUID(chosen), "name")))


async def test_a_thread_gets_its_agent_with_its_first_run(service: RunningService, ann: LangGraphClient) -> None:
    thread_id = (await ann.threads.create(graph_id="Georges"))["thread_id"]
    assert (await ann.threads.get(thread_id))["metadata"] == {"graph_id": "Georges"}
    bare = (await ann.threads.create())["thread_id"]
    headers = headers_of("ann")
    async with service.http.get(f"{BASE}/chatbot/sessions", headers=headers) as response:
        assert [(one["agent_id"], one["agents"]) for one in await response.json()] == [("", [])] * 2
    async with service.http.get(f"{BASE}/chatbot/session/{bare}/export", headers=headers) as response:
        assert response.status == 200
    assert "event: final" in await ask(service, bare)
    thread: Any = await ann.threads.get(bare)
    assert thread.keys() == RUN
    assert thread["metadata"] == DERIVED
    assert (thread["status"], thread["interrupts"], thread["config"]) == ("idle", {}, {"configurable": {}})
    assert [one["type"] for one in thread["values"]["messages"]] == ["human", "ai"]
    async with service.http.get(f"{BASE}/chatbot/sessions", headers=headers) as response:
        first = (await response.json())[0]
        assert (first["id"], first["agent_id"]) == (bare, "Georges")
        assert first["agents"] == [{"id": "Georges", "name": "Georges"}]


async def test_a_session_of_the_page_is_a_thread(service: RunningService, ann: LangGraphClient) -> None:
    async with service.http.post(f"{BASE}/chatbot/session", json={}, headers=headers_of("ann")) as response:
        session_id = (await response.json())["id"]
    thread = await ann.threads.get(session_id)
    assert (thread["thread_id"], thread["metadata"]) == (session_id, {})
    assert (await ann.threads.update(session_id, metadata={"a": 1}))["metadata"] == {"a": 1}
    chosen = (await ann.threads.create())["thread_id"]
    body = {"session_id": chosen, "agent_id": "Georges"}
    async with service.http.post(f"{BASE}/chatbot/session", json=body, headers=headers_of("ann")) as response:
        assert response.status == 200


async def test_nobody_sees_anothers_threads(
    service: RunningService, ann: LangGraphClient, bob: LangGraphClient
) -> None:
    thread_id = (await ann.threads.create(metadata={"k": "v"}))["thread_id"]
    await ask(service, thread_id)
    for attempt in (
        bob.threads.get(thread_id),
        bob.threads.update(thread_id, metadata={"a": 1}),
        bob.threads.delete(thread_id),
        bob.threads.copy(thread_id),
    ):
        with pytest.raises(NotFoundError, match=f"Thread with ID {thread_id} not found"):
            await attempt
    assert await bob.threads.search(metadata={"k": "v"}) == []
    assert await bob.threads.search(ids=[thread_id]) == []
    assert await bob.threads.count(metadata={"k": "v"}) == 0
    assert (await ann.threads.get(thread_id))["metadata"] == {"k": "v", **DERIVED}


async def test_threads_are_searched(service: RunningService, ann: LangGraphClient) -> None:
    made = [(await ann.threads.create(metadata={"user": "u", "n": n}))["thread_id"] for n in range(3)]
    other = (await ann.threads.create(metadata={"user": "v"}))["thread_id"]
    await ask(service, made[1])

    async def found(**wanted: Any) -> list[str]:
        return [thread["thread_id"] for thread in await ann.threads.search(**wanted)]

    assert await found(metadata={"user": "u"}, sort_by="created_at", sort_order="asc") == made
    assert await found(sort_by="updated_at") == [made[1], other, made[2], made[0]]
    assert await found(sort_by="state_updated_at", limit=1) == [made[1]]
    assert await found(sort_by="thread_id", sort_order="asc") == sorted([*made, other])
    assert await found(metadata=DERIVED) == await found(metadata={"graph_id": "Georges"}) == [made[1]]
    assert await found(metadata={"assistant_id": DERIVED["assistant_id"], "user": "v"}) == []
    assert await found(metadata={"graph_id": "Nobody"}) == []
    assert await found(ids=[made[0], str(uuid4())]) == [made[0]]
    assert await found(limit=1, offset=1, sort_by="created_at", sort_order="asc") == [made[1]]
    assert await ann.threads.count(metadata={"user": "u"}) == 3
    assert await ann.threads.count() == 4

    url = "/threads/search"
    async with service.http.post(url, json={"limit": 2}, headers=headers_of("ann")) as response:
        assert response.headers["X-Pagination-Total"] == "4"
        threads = await response.json()
    assert threads == [await ann.threads.get(made[1]), await ann.threads.get(other)]
    assert [len((thread["values"] or {}).get("messages", ())) for thread in threads] == [2, 0]
    assert [set(thread) for thread in threads] == [RUN, MADE]
    (chosen,) = await ann.threads.search(ids=[made[1]], select=["thread_id", "values"])
    values: Any = chosen["values"]
    assert chosen.keys() == {"thread_id", "values"}
    assert len(values["messages"]) == 2
    selected: Any = await ann.threads.search(ids=[made[0]], select=["status"])
    assert selected == [{"status": "idle"}]


async def test_a_thread_waits_for_a_person_or_has_failed(service: RunningService, ann: LangGraphClient) -> None:
    waits, failed = [(await ann.threads.create())["thread_id"] for _ in range(2)]
    await keep(service, waits, AWAITS)
    await keep(service, failed, FAILED)
    thread = await ann.threads.get(waits)
    assert thread["status"] == "interrupted"
    ((task, (interrupt,)),) = thread["interrupts"].items()
    assert task
    assert interrupt["id"] == "i1"
    (found,) = await ann.threads.search(status="interrupted")
    assert (found["thread_id"], found["interrupts"]) == (waits, thread["interrupts"])
    (found,) = await ann.threads.search(status="error")
    assert found == await ann.threads.get(failed)
    assert [await ann.threads.count(status=status) for status in ("idle", "busy")] == [0, 0]
    await ask(service, failed)
    assert await ann.threads.count(status="idle") == 1


async def test_a_thread_is_busy_while_a_turn_runs(start_service: StartService) -> None:
    async with (
        held_model("so far") as model,
        start_service(ai=model.ai, security=SECURITY) as service,
        client_of(service, "ann") as ann,
    ):
        thread_id = (await ann.threads.create())["thread_id"]
        asking = asyncio.create_task(ask(service, thread_id))
        while await ann.threads.count(status="busy") == 0:
            assert not asking.done()
        thread = await ann.threads.get(thread_id)
        assert (thread["status"], thread["metadata"], thread["values"]) == ("busy", DERIVED, None)
        assert [one["thread_id"] for one in await ann.threads.search(metadata=DERIVED, status="busy")] == [thread_id]
        with pytest.raises(ConflictError):
            await ann.threads.copy(thread_id)
        model.go.set()
        await asking
        assert (await ann.threads.get(thread_id))["status"] == "idle"


async def test_a_copy_goes_on_by_itself(service: RunningService, ann: LangGraphClient) -> None:
    thread_id = (await ann.threads.create(metadata={"k": "v"}))["thread_id"]
    await ask(service, thread_id, "First")
    async with service.http.post(f"/threads/{thread_id}/copy", headers=headers_of("ann")) as response:
        copy = await response.json()
    assert copy.keys() == MADE - {"values"}
    assert copy["metadata"] == {"k": "v", **DERIVED}
    assert "event: final" in await ask(service, copy["thread_id"], "Second")
    values: Any = (await ann.threads.get(copy["thread_id"]))["values"]
    assert [one["content"] for one in values["messages"] if one["type"] == "human"] == ["First", "Second"]
    values = (await ann.threads.get(thread_id))["values"]
    assert [one["content"] for one in values["messages"] if one["type"] == "human"] == ["First"]


async def test_nobody_makes_more_threads_than_they_may(start_service: StartService) -> None:
    async with (
        start_service(security=SECURITY, ai={"max_concurrent_sessions_per_user": 1}) as service,
        client_of(service, "ann") as ann,
    ):
        thread_id = (await ann.threads.create())["thread_id"]
        for attempt in (ann.threads.create(), ann.threads.copy(thread_id)):
            with pytest.raises(APIStatusError, match=r"Session limit reached \(1 sessions per user\)"):
                await attempt
        assert await ann.threads.count() == 1


DEEP: dict[str, Any] = {}
for _ in range(40):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("", {"thread_id": "abc"}, 422, "thread_id"),
        ("", {"thread_id": 1}, 422, "thread_id"),
        ("", {"thread_id": "\x00"}, 422, "thread_id"),
        ("", {"metadata": []}, 422, "metadata"),
        ("", {"metadata": {"a\x00": 1}}, 422, "metadata"),
        ("", {"metadata": {"a": ["\x00"]}}, 422, "metadata"),
        ("", {"metadata": DEEP}, 422, "metadata"),
        ("", {"metadata": {"a": "x" * 17_000}}, 413, "metadata"),
        ("", {"if_exists": "maybe"}, 422, "if_exists"),
        ("", {"ttl": {"ttl": 1}}, 422, "ttl"),
        ("", {"supersteps": [{"updates": []}]}, 422, "supersteps"),
        ("", [], 422, None),
        ("/search", {"metadata": "x"}, 422, "metadata"),
        ("/search", {"metadata": {"a": "\x00"}}, 422, "metadata"),
        ("/search", {"values": {"a": 1}}, 422, "values"),
        ("/search", {"extract": {"a": "b"}}, 422, "extract"),
        ("/search", {"ids": "x"}, 422, "ids"),
        ("/search", {"ids": ["\x00"]}, 422, "ids[0]"),
        ("/search", {"ids": ["x"] * 1001}, 422, "ids"),
        ("/search", {"status": "asleep"}, 422, "status"),
        ("/search", {"limit": 0}, 422, "limit"),
        ("/search", {"limit": 1001}, 422, "limit"),
        ("/search", {"limit": True}, 422, "limit"),
        ("/search", {"limit": 101, "select": ["values"]}, 422, "limit"),
        ("/search", {"offset": -1}, 422, "offset"),
        ("/search", {"offset": 2**31}, 422, "offset"),
        ("/search", {"sort_by": "title"}, 422, "sort_by"),
        ("/search", {"sort_order": "up"}, 422, "sort_order"),
        ("/search", {"select": ["thread_id", "title"]}, 422, "select"),
        ("/search", {"select": "thread_id"}, 422, "select"),
        ("/count", {"status": 1}, 422, "status"),
        ("/count", {"values": {"a": 1}}, 422, "values"),
    ],
)
async def test_a_fault_names_its_field(
    service: RunningService, path: str, body: Any, status: int, field: str | None
) -> None:
    async with service.http.post(f"/threads{path}", json=body, headers=headers_of("ann")) as response:
        told = await response.json()
        assert (response.status, told.get("field")) == (status, field), told
        assert isinstance(told["detail"], str)


async def test_faults_of_one_thread(service: RunningService, ann: LangGraphClient) -> None:
    with pytest.raises(UnprocessableEntityError, match="Invalid thread ID: must be a UUID"):
        await ann.threads.get("abc")
    for attempt in (
        ann.threads.update("abc", metadata={}),
        ann.threads.delete("a\x00"),
        ann.threads.copy("abc"),
        ann.threads.get("é"),
    ):
        with pytest.raises(UnprocessableEntityError):
            await attempt
    unknown = "00000000-0000-0000-0000-000000000000"
    for missing in (
        ann.threads.update(unknown, metadata={}),
        ann.threads.update(unknown, metadata={"a": 1}),
        ann.threads.delete(unknown),
        ann.threads.copy(unknown),
    ):
        with pytest.raises(NotFoundError, match=f"Thread with ID {unknown} not found"):
            await missing
    thread_id = (await ann.threads.create(metadata={"a": "x" * 16_000}))["thread_id"]
    for metadata, status in (({"b": "x" * 500}, 413), ({"b": "\x00"}, 422)):
        with pytest.raises(APIStatusError) as refused:
            await ann.threads.update(thread_id, metadata=metadata)
        assert refused.value.status_code == status
    with pytest.raises(UnprocessableEntityError):
        await ann.threads.update(thread_id, metadata={}, ttl=5)
    async with service.http.post("/threads", data=b"{", headers=headers_of("ann")) as response:
        assert response.status == 422
    async with service.http.post("/threads", json={"ttl": None, "supersteps": None, "more": 1}) as response:
        assert response.status == 401
