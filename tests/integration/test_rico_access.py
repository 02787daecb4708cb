"""Both services with security on: what Rico finds, cites and opens is what the person who asks may read."""

import json
from typing import Any

from tests.integration.test_rico_and_knowledge_flow import agents
from tests.knowledge_flow_backend.access.filled import (
    DOCUMENTS,
    PEOPLE,
    TEXT,
    FilledService,
    filled_service_on,
    readable,
    token_of,
)
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.people import SECURITY
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hear, hear_until, say


async def session_of(service: RunningService, user: str) -> str:
    """A session of a person's with Rico."""
    headers = {"Authorization": f"Bearer {token_of(user)}"}
    async with service.http.post(f"{BASE}/chatbot/session", json={"agent_id": "Rico"}, headers=headers) as response:
        assert response.status == 200
        return str((await response.json())["id"])


async def ask(service: RunningService, user: str, session_id: str, **context: Any) -> dict[str, Any]:
    """The final of one question that every document answers."""
    async with service.native(token_of(user)) as socket:
        frame = {"session_id": session_id, "agent_id": "Rico", "message": f"What is it that {TEXT}?"}
        await say(socket, type="ask", **frame, runtime_context=context)
        return (await hear_until(socket, "final"))[-1]


async def claim(service: RunningService, user: str, session_id: str, **claimed: Any) -> list[dict[str, Any]]:
    """All frames of the same question in the compatible protocol, where anybody may claim to be somebody."""
    async with service.compatible(token=token_of(user)) as socket:
        frame = {"session_id": session_id, "agent_id": "Rico", "message": f"What is it that {TEXT}?"}
        await say(socket, **frame, **claimed)
        heard = [await hear(socket)]
        while heard[-1]["type"] != "final":
            heard.append(await hear(socket))
        return heard


def cited(filled_service: FilledService, final: dict[str, Any]) -> set[str]:
    """The documents that an answer was made of, or links to."""
    answer = final["messages"][-1]
    uids = {source["uid"] for source in answer["metadata"].get("sources", [])}
    uids |= {part["document_uid"] for part in answer["parts"] if part.get("document_uid")}
    return {filled_service.name(uid) for uid in uids}


def foreign(user: str, heard: object) -> list[str]:
    """The documents of others whose words are in what was heard."""
    text = json.dumps(heard)
    return [name for name in DOCUMENTS if name not in readable(user) and f"canary{name}-" in text]


async def test_rico_cites_nothing_that_its_user_may_not_read(
    start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with (
        filled_service_on(start_on(database, mock_llm.base_url), {"postgres": database.settings()}) as filled_service,
        start_service(**agents(filled_service.service.port), security=SECURITY) as service,
    ):
        private = filled_service.documents["private"]
        every = {"selected_document_uids": [*filled_service.documents.values()]}
        for user in PEOPLE:
            session_id = await session_of(service, user)
            for context in ({}, every, {"selected_document_libraries_ids": [*filled_service.libraries.values()]}):
                final = await ask(service, user, session_id, **context)
                assert cited(filled_service, final) <= readable(user)
                assert cited(filled_service, final), (user, context)
                assert foreign(user, final) == []
            only = await ask(service, user, session_id, selected_document_uids=[private])
            assert cited(filled_service, only) == {"private"} & readable(user)
            claims = {"user_id": "ada", "user_groups": ["/team"], "access_token": token_of("ada"), **every}
            frames = await claim(service, user, session_id, runtime_context=claims, access_token=token_of("ada"))
            assert cited(filled_service, frames[-1]) <= readable(user)
            assert foreign(user, frames) == []


async def test_a_citation_opens_for_those_who_may_read_it_and_for_nobody_else(
    start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with (
        filled_service_on(start_on(database, mock_llm.base_url), {"postgres": database.settings()}) as filled_service,
        start_service(**agents(filled_service.service.port), security=SECURITY) as service,
    ):
        for user in PEOPLE:
            headers = {"Authorization": f"Bearer {token_of(user)}"}
            opened = set()
            for name, uid in filled_service.documents.items():
                for path in (f"/documents/{uid}/markdown", f"/documents/{uid}/chunks/{filled_service.passages[name]}"):
                    async with service.http.get(BASE + path, headers=headers) as response:
                        assert response.status == (200 if name in readable(user) else 404)
                        opened |= {name} if response.status == 200 else set()
            assert opened == readable(user)
