"""Who did what: every route that changes something leaves one event, or is listed with the reason why not."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
import psycopg
import pytest

from agentic_backend.rest.scopes import SCOPES
from backend_kit.auth import AuditAction
from knowledge_flow_backend.scopes import SCOPES as KNOWLEDGE_SCOPES
from tests.agentic_backend.llm.scripted import scripted
from tests.agentic_backend.records import until
from tests.integration.test_attachments import form
from tests.integration.test_human import ALLOW, DONE, NOTES, answer, ask, sections
from tests.knowledge_flow_backend.access.audited import AUDITED as KNOWLEDGE_AUDITED
from tests.knowledge_flow_backend.access.audited import NOT_AUDITED as KNOWLEDGE_NOT_AUDITED
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.people import SECRET
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hear_until, say
from tests.support.tool_server import tool_server

__all__ = ["tool_server"]

SECURITY: dict[str, Any] = {"user": {"enabled": True, "client_id": "turnwise"}, "hs256_secret": SECRET}
_OWN = "the caller's own, which nobody else sees"
_THERE = "knowledge flow notes it, for the same caller"
_READS = "reads, by a question that is too long for an address"

AUDITED: dict[str, AuditAction] = {
    "GET /audit/events": AuditAction.AUDIT_EXPORTED,
    "POST /chatbot/keys": AuditAction.KEY_MADE,
    "DELETE /chatbot/keys/{key_id}": AuditAction.KEY_REVOKED,
    "POST /agents/create": AuditAction.AGENT_CREATED,
    "PUT /agents/update": AuditAction.AGENT_CHANGED,
    "DELETE /agents/{agent_id}": AuditAction.AGENT_DELETED,
    "PUT /agents/{agent_id}/access": AuditAction.AGENT_SHARED,
    "DELETE /chatbot/session/{session_id}": AuditAction.SESSION_DELETED,
    "POST /chatbot/session/{session_id}/share": AuditAction.SESSION_SHARED,
    "DELETE /chatbot/session/{session_id}/share/{share_id}": AuditAction.SESSION_UNSHARED,
    "DELETE /chatbot/me": AuditAction.SESSION_DELETED,
    "DELETE //v1/responses/{response_id}": AuditAction.SESSION_DELETED,
    "DELETE /chatbot/upload/{attachment_id}": AuditAction.ATTACHMENT_DELETED,
    # A question is none; an answer to an agent's question is.
    "WS /chatbot/query/ws": AuditAction.PERSON_ANSWERED,
    "POST /chatbot/query/stream": AuditAction.PERSON_ANSWERED,
    "POST //assistants": AuditAction.AGENT_CREATED,
    "PATCH //assistants/{assistant_id}": AuditAction.AGENT_CHANGED,
    "POST //assistants/{assistant_id}/latest": AuditAction.AGENT_CHANGED,
    "DELETE //assistants/{assistant_id}": AuditAction.AGENT_DELETED,
    "DELETE //threads/{thread_id}": AuditAction.SESSION_DELETED,
}
NOT_AUDITED: dict[str, str] = {
    "WS /chatbot/query/ws-baseline": "keeps nothing, and its agent asks nobody",
    "POST /chatbot/session": _OWN,
    "PATCH /chatbot/session/{session_id}": _OWN,
    "PUT /chatbot/session/{session_id}/preferences": _OWN,
    "POST /chatbot/feedback": _OWN,
    "DELETE /chatbot/feedback/{feedback_id}": "an opinion that is taken back, not a record",
    "POST /chatbot/upload": _OWN,
    "POST /knowledge/tags": _THERE,
    "PUT /knowledge/tags/{uid}": _THERE,
    "DELETE /knowledge/tags/{uid}": _THERE,
    "PUT /knowledge/tags/{uid}/access": _THERE,
    "PUT /knowledge/documents/{uid}/tags": _THERE,
    "POST /knowledge/documents/{uid}/ingest": _THERE,
    "POST /knowledge/documents/browse": _READS,
    "DELETE /knowledge/documents/{uid}": _THERE,
    "POST /knowledge/upload-process-documents": _THERE,
    "POST /knowledge/vector/search": _READS,
    "POST //v1/chat/completions": "a question; an answer to an agent's is noted where every door hands its asks in",
    "POST //v1/responses": "as POST //v1/chat/completions",
    "POST //v1/responses/{response_id}/cancel": "a turn that ends sooner",
    "POST //agui/{agent_id}": "as POST //v1/chat/completions",
    "DELETE //agui/{agent_id}/runs/{exchange_id:path}": "a turn that ends sooner",
    "POST //threads/{thread_id}/state/checkpoint": _READS,
    "POST //threads/{thread_id}/history": _READS,
    "POST //threads/search": _READS,
    "POST //threads/count": _READS,
    "POST //assistants/search": _READS,
    "POST //assistants/count": _READS,
    "POST //assistants/{assistant_id}/versions": _READS,
    "POST //store/items/search": _READS,
    "POST //store/namespaces": _READS,
    "POST //threads/{thread_id}/stream/events": _READS,
    "POST //threads/{thread_id}/runs": "as POST //v1/chat/completions",
    "POST //threads/{thread_id}/runs/stream": "as POST //v1/chat/completions",
    "POST //threads/{thread_id}/runs/wait": "as POST //v1/chat/completions",
    "POST //runs": "as POST //v1/chat/completions",
    "POST //runs/stream": "as POST //v1/chat/completions",
    "POST //runs/wait": "as POST //v1/chat/completions",
    "POST //threads/{thread_id}/commands": "as POST //v1/chat/completions",
    "POST //threads": _OWN,
    "PATCH //threads/{thread_id}": _OWN,
    "POST //threads/{thread_id}/copy": _OWN,
    "PUT //store/items": _OWN,
    "DELETE //store/items": _OWN,
    "POST //threads/{thread_id}/state": "a turn of the caller's own graph, without a model",
    "POST //threads/{thread_id}/runs/{run_id}/cancel": "a turn that ends sooner",
    "DELETE //threads/{thread_id}/runs/{run_id}": "a line of a list: what was said stays",
    "POST //mcp": "as POST //v1/chat/completions",
    "DELETE //mcp": "a session of the protocol, which is no conversation",
}


def test_every_route_that_changes_something_has_its_event_or_a_reason() -> None:
    for rows, audited, reasons in (
        (SCOPES, AUDITED, NOT_AUDITED),
        (KNOWLEDGE_SCOPES, KNOWLEDGE_AUDITED, KNOWLEDGE_NOT_AUDITED),
    ):
        changing = {row for row in rows if not row.startswith("GET ")}
        assert changing <= set(audited) | set(reasons)
        assert set(audited) | set(reasons) <= set(rows)
        assert not set(audited) & set(reasons)
        assert all(reasons.values())


def test_every_action_is_of_some_route() -> None:
    beside = {
        AuditAction.SIGNED_IN,
        AuditAction.READ_BY_SHARE,
        AuditAction.LIBRARY_UNSHARED,
        AuditAction.AGENT_UNSHARED,
    }
    assert {*AUDITED.values(), *KNOWLEDGE_AUDITED.values(), *beside} == set(AuditAction)


def bearer(user: str, *roles: str) -> dict[str, str]:
    now = int(time.time())
    claims = {"sub": user, "aud": "turnwise", "iat": now, "exp": now + 600}
    return {
        "Authorization": f"Bearer {jwt.encode(claims | {'resource_access': {'turnwise': {'roles': roles}}}, SECRET)}"
    }


EVENTS = """SELECT action, kind, object_id, outcome, actor, key_id, request_id FROM public.audit_event
    WHERE action <> 'signed_in' ORDER BY happened_at"""


def events(database: Database, query: str = EVENTS) -> list[tuple[str, ...]]:
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(query.encode()).fetchall()


async def call(service: RunningService, user: str, method: str, path: str, **options: Any) -> Any:
    """One request of an operator, whose id is that of its path; the decoded body."""
    place = path[1:] if path.startswith("//") else BASE + path
    headers = {**bearer(user, "admin"), "X-Request-ID": path.rpartition("/")[2], **options.pop("headers", {})}
    async with service.http.request(method, place, headers=headers, **options) as response:
        text = await response.text()
        assert response.status < 300, (response.status, text)
        return json.loads(text) if response.content_type == "application/json" and text else text


@asynccontextmanager
async def secured(start_service: StartService, **sections: Any) -> AsyncIterator[RunningService]:
    async with start_service(security=SECURITY, **sections) as service:
        yield service


@pytest.mark.one_instance("an agent, and who may use it, is known to other instances within seconds")
async def test_keys_agents_and_conversations_leave_one_event_for_each_change(
    start_service: StartService, database: Database
) -> None:
    async with secured(start_service, ai={"use_static_config_only": False}) as service:
        key = (await call(service, "ann", "POST", "/chatbot/keys", json={"name": "Secret plans"}))["id"]
        await call(service, "ann", "DELETE", f"/chatbot/keys/{key}")
        made = await call(service, "ann", "POST", "/agents/create", json={"name": "Secret agent"})
        await call(service, "ann", "PUT", "/agents/update", json=made | {"name": "Other secret"})
        await call(service, "ann", "DELETE", f"/agents/{made['id']}")
        session = (await call(service, "ann", "POST", "/chatbot/session", json={"title": "Secret title"}))["id"]
        await call(service, "ann", "DELETE", f"/chatbot/session/{session}")
        body = {"model": "Georges", "input": "Secret question"}
        response = (await call(service, "ann", "POST", "//v1/responses", json=body))["id"]
        await call(service, "ann", "DELETE", f"//v1/responses/{response}")
        told = events(database)
        assert [(action, kind, actor, outcome, key_id) for action, kind, _, outcome, actor, key_id, _ in told] == [
            (action, kind, "ann", "done", "")
            for action, kind in (
                ("key_made", "key"),
                ("key_revoked", "key"),
                ("agent_created", "agent"),
                ("agent_changed", "agent"),
                ("agent_deleted", "agent"),
                ("session_deleted", "session"),
                ("session_deleted", "session"),
            )
        ]
        assert [row[2] for row in told[:6]] == [key, key, made["id"], made["id"], made["id"], session]
        assert [row[6] for row in told[:6]] == ["keys", key, "create", "update", made["id"], session]
        everything = repr(events(database, "SELECT * FROM public.audit_event"))
        assert "ecret" not in everything


async def test_what_is_refused_leaves_no_event(start_service: StartService, database: Database) -> None:
    async with secured(start_service, ai={"use_static_config_only": False}) as service:
        session = (await call(service, "ann", "POST", "/chatbot/session", json={}))["id"]
        for method, path, status in (
            ("DELETE", f"/chatbot/session/{session}", 403),
            ("DELETE", "/chatbot/keys/aaaaaaaaaaaa", 404),
            ("DELETE", "/agents/nobody", 404),
            ("GET", "/audit/events", 403),
        ):
            roles = () if path.startswith("/audit") else ("admin",)
            async with service.http.request(method, BASE + path, headers=bearer("bob", *roles)) as response:
                assert response.status == status, await response.text()
        await call(service, "ann", "POST", "/agents/create", json={"name": "Ada"})
        assert [row[0] for row in events(database)] == ["agent_created"]


@pytest.mark.parametrize(("payload", "outcome"), [(ALLOW, "approved"), ({"choice_id": "deny"}, "refused")])
@pytest.mark.parametrize("door", ["socket", "stream"])
async def test_an_answer_to_an_agent_says_whether_the_tool_may_run(
    start_service: StartService, tool_server: Any, database: Database, payload: Any, outcome: str, door: str
) -> None:
    async with scripted(NOTES, DONE) as model, secured(start_service, **sections(model, tool_server)) as service:
        body = {"agent_id": "Sammy"}
        session = (await call(service, "ann", "POST", "/chatbot/session", json=body))["id"]
        await call(service, "ann", "POST", "/chatbot/query/stream", json=ask(session))
        assert events(database) == []
        if door == "stream":
            await call(service, "ann", "POST", "/chatbot/query/stream", json=answer(session, payload))
        else:
            async with service.native(bearer("ann")["Authorization"].split()[1]) as socket:
                await say(socket, **answer(session, payload))
                await hear_until(socket, "final")
        await until(lambda: bool(events(database)))
        # A second answer is none.
        async with service.http.post(
            f"{BASE}/chatbot/query/stream", json=answer(session, payload), headers=bearer("ann")
        ) as response:
            assert "event: error" in await response.text() or response.status >= 400
        await call(service, "ann", "DELETE", f"/chatbot/session/{session}")
        told = events(database)
        assert [row[:5] for row in told] == [
            ("person_answered", "exchange", "e1", outcome, "ann"),
            ("session_deleted", "session", session, "done", "ann"),
        ]
        assert told[0][6] != ""


async def test_attachments(start_service: StartService, database: Database, mock_llm: MockModel) -> None:
    async with start_on(database, mock_llm.base_url)(security=SECURITY) as knowledge:
        agents = [{"name": "Rico", "class_path": "agentic_backend.agent.rag", "chat_options": {"attach_files": True}}]
        ai = {"knowledge_flow_url": f"http://127.0.0.1:{knowledge.port}{KNOWLEDGE_BASE}", "agents": agents}
        async with secured(start_service, ai=ai) as service:
            session = (await call(service, "ann", "POST", "/chatbot/session", json={}))["id"]
            sent = form("a.md", "# Pumps\n\nA pump.", session_id=session)
            one = (await call(service, "ann", "POST", "/chatbot/upload", data=sent))["attachment_id"]
            await call(service, "ann", "DELETE", f"/chatbot/upload/{one}")
            assert [row[:5] for row in events(database)] == [("attachment_deleted", "attachment", one, "done", "ann")]


@pytest.mark.one_instance("each process counts its own interval")
async def test_a_caller_signs_in_once_an_interval_and_a_key_beside_its_owner(
    start_service: StartService, database: Database
) -> None:
    signed_in = "SELECT actor, object_id, key_id FROM public.audit_event WHERE action = 'signed_in' ORDER BY 1, 3"
    async with secured(start_service) as service:
        body = {"name": "k", "scopes": ["ask", "read"]}
        key = await call(service, "ann", "POST", "/chatbot/keys", json=body)
        for headers in (bearer("ann"), bearer("bob"), {"x-api-key": key["key"], "Authorization": ""}) * 3:
            async with service.http.get(f"{BASE}/agents", headers=headers) as response:
                assert response.status == 200
        async with service.native(bearer("cleo")["Authorization"].split()[1]) as socket:
            await say(socket, type="ping")
            await hear_until(socket, "pong")
        async with service.http.get(f"{BASE}/agents", headers={"Authorization": "Bearer nonsense"}) as response:
            assert response.status == 401
        await until(lambda: len(events(database, signed_in)) == 4)
        assert events(database, signed_in) == [
            ("ann", "ann", ""),
            ("ann", "ann", key["id"]),
            ("bob", "bob", ""),
            ("cleo", "cleo", ""),
        ]


async def test_nobody_signs_in_where_nobody_has_to(service: RunningService, database: Database) -> None:
    session = await service.create_session()
    async with service.http.delete(f"{BASE}/chatbot/session/{session}") as response:
        assert response.status == 200
    told = events(database, "SELECT action, actor FROM public.audit_event")
    assert told == [("session_deleted", "admin")]


async def test_an_operator_exports_what_was_written_between_two_times(
    start_service: StartService, database: Database
) -> None:
    async with secured(start_service) as service:
        for _ in range(2):
            await call(service, "ann", "POST", "/chatbot/keys", json={"name": "k"})
        path = f"{BASE}/audit/events"
        async with service.http.get(path, headers=bearer("ann", "admin")) as response:
            assert response.content_type == "application/x-ndjson"
            assert response.headers["Cache-Control"] == "private, no-store"
            told = [json.loads(line) for line in (await response.text()).splitlines()]
        made = [one for one in told if one["action"] == "key_made"]
        assert [one["actor"] for one in made] == ["ann", "ann"]
        params = {"since": made[1]["written_at"], "until": "2100-01-01T00:00:00Z"}
        async with service.http.get(path, params=params, headers=bearer("ann", "admin")) as response:
            rest = [json.loads(line)["id"] for line in (await response.text()).splitlines()]
        assert rest[0] == made[1]["id"]
        assert made[0]["id"] not in rest
        for wrong in ("yesterday", "2026-01-01T00:00:00"):
            async with service.http.get(path, params={"since": wrong}, headers=bearer("ann", "admin")) as response:
                assert response.status == 422
        # Who has read it is in it, too.
        await until(lambda: sum(row[0] == "audit_exported" for row in events(database)) == 2)
