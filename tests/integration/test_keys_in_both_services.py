"""A key that asks an agent is the key by which knowledge flow decides what the agent finds, its named user included."""

from typing import Any

from backend_kit.auth import ActingHeaders, ActingUser, KeyScope
from tests.integration.test_rico_and_knowledge_flow import SPOOL, agents, upload
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow, start_on
from tests.support.api_keys import ALL, stored_key
from tests.support.mock_llm import MockModel
from tests.support.people import SECURITY, headers_of
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService

SIGNING = "another secret of thirty-two bytes"
ACT_AS = {**SECURITY, "api_keys": {"act_as_secret": SIGNING}}
QUESTION = "Where is a finished turn appended?"


async def library(knowledge: RunningKnowledgeFlow, name: str, **readers: Any) -> str:
    """A library of ann's with one document, and its readers."""
    headers = headers_of("ann")
    async with knowledge.http.post(f"{KNOWLEDGE_BASE}/tags", json={"name": name}, headers=headers) as made:
        tag = str((await made.json())["id"])
    access = {"everyone": False, "users": [], "groups": [], **readers}
    path = f"{KNOWLEDGE_BASE}/tags/{tag}/access"
    async with knowledge.http.put(path, json=access, headers=headers) as shared:
        assert shared.status == 200
    knowledge.http.headers.update(headers)
    await upload(knowledge, f"{name}.md", SPOOL, tag)
    del knowledge.http.headers["Authorization"]
    return tag


async def sources(service: RunningService, key: str, headers: dict[str, str] | None = None) -> list[str]:
    """The libraries in which Rico finds something for whoever has the key."""
    own = {"x-api-key": key, "Authorization": "", **(headers or {})}
    async with service.http.post(f"{BASE}/chatbot/session", json={"agent_id": "Rico"}, headers=own) as made:
        session_id = (await made.json())["id"]
    ask = {"type": "ask", "session_id": session_id, "agent_id": "Rico", "message": QUESTION}
    async with service.http.post(f"{BASE}/chatbot/query/stream", json=ask, headers=own) as answer:
        assert "event: final" in await answer.text()
    async with service.http.get(f"{BASE}/chatbot/session/{session_id}/history", headers=own) as history:
        last = (await history.json())[-1]
    return sorted({name for hit in last["metadata"].get("sources", []) for name in hit["tag_names"]})


async def test_what_an_agent_finds_is_what_the_key_may_search(
    start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with start_on(database, mock_llm.base_url)(security=ACT_AS) as knowledge:
        named = "via:openwebui:bob"
        first = await library(knowledge, "one", users=[named])
        await library(knowledge, "two")
        async with start_service(security=ACT_AS, **agents(knowledge.port)) as service:
            assert await sources(service, stored_key(database)) == ["one", "two"]
            assert await sources(service, stored_key(database, libraries=frozenset({first}))) == ["one"]
            without = stored_key(database, scopes=frozenset({KeyScope.ASK, KeyScope.READ}))
            assert await sources(service, without) == []
            front = stored_key(database, scopes=ALL | {KeyScope.ACT_AS})
            bob = ActingHeaders(SIGNING).write(ActingUser("bob"))
            carl = ActingHeaders(SIGNING).write(ActingUser("carl"))
            assert await sources(service, front, bob) == ["one"], "who he is has reached knowledge flow"
            assert await sources(service, front, carl) == []
