"""The agents as tools of an MCP server, by the official client: on the whole service, in both eras of the protocol."""

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from mcp import MCPError
from mcp_types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ResourceLink,
    TextContent,
)

from tests.agentic_backend.knowledge.fake import fake_knowledge, hit
from tests.agentic_backend.llm.scripted import ScriptedModel, scripted, stalls_after, status, token
from tests.support.agentic import StartProcess, start_process
from tests.support.mcp_client import ERAS, mcp_client
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of
from tests.support.service import RunningService, ServiceClient, StartService, hits
from tests.support.tool_model import says, wants
from tests.support.tool_server import ToolServer, counts, tool_server

__all__ = ["start_process", "tool_server"]

LEGACY, MODERN = ERAS
NOTES = wants(("c1", "note", '{"text": "milk"}'), text="I will note it.")
DONE = says("I noted ", "milk.")
ACCEPT = {"Accept": "application/json, text/event-stream"}
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def sections(model: ScriptedModel, tools: ToolServer) -> dict[str, Any]:
    """A configuration with Sammy on a scripted model and a tool server."""
    sammy = {
        "name": "Sammy",
        "class_path": "agentic_backend.agent.tools",
        "tuning": {"mcp_servers": [{"id": "notes"}]},
    }
    model_settings = {"name": "scripted", "settings": {"base_url": model.base_url}}
    return {
        "ai": {"default_chat_model": model_settings, "agents": [sammy]},
        "mcp": {"servers": [{"id": "notes", "url": tools.url}]},
    }


async def used(tools: ToolServer, name: str) -> int:
    """How often a tool was called."""
    return int((await counts(tools))["counts"].get(name, 0))


class Person:
    """A user in front of a client that shows forms."""

    def __init__(self, *answers: ElicitResult) -> None:
        self.asked: list[ElicitRequestFormParams] = []
        self._answers = list(answers)

    async def __call__(self, _context: Any, params: Any) -> ElicitResult:
        self.asked.append(params)
        return self._answers.pop(0)


def chosen(choice: str) -> ElicitResult:
    return ElicitResult(action="accept", content={"choice": choice})


def text_of(result: CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


def code_of(result: CallToolResult) -> str:
    assert result.is_error, result
    assert text_of(result).startswith(result.structured_content["code"])
    return str(result.structured_content["code"])


async def opened(service: ServiceClient, **headers: str) -> str:
    """A session of the older protocol, over plain HTTP; its id."""
    async with service.http.post("/mcp", json=INITIALIZE, headers={**ACCEPT, **headers}) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["Mcp-Session-Id"]


async def status_in(service: RunningService, session_id: str, **headers: str) -> int:
    """What a listing of tools in a session is answered with."""
    named = {**ACCEPT, "Mcp-Session-Id": session_id, **headers}
    async with service.http.post("/mcp", json=LIST, headers=named) as answer:
        await answer.read()
        return answer.status


async def quiet(service: RunningService) -> None:
    """Wait until no turn runs."""
    async with asyncio.timeout(PATIENCE_S):
        while service.running_turns:  # noqa: ASYNC110 - a registry tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("era", ERAS)
async def test_each_agent_is_a_tool_that_answers(start_service: StartService, era: str) -> None:
    agents = [{"name": "Georges"}, {"name": "Big Ben"}, {"name": "Off", "enabled": False}]
    async with start_service(ai={"agents": agents}) as service, mcp_client(service.port, era) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools[0] == "ask_Georges"
        assert len(tools) == 2
        assert tools[1].startswith("ask_Big_Ben_")
        first = await client.call_tool("ask_Georges", {"question": "one two three"})
        assert not first.is_error
        answer = first.structured_content
        assert (answer["status"], answer["answer"]) == ("final", text_of(first))
        again = await client.call_tool("ask_Georges", {"question": "four", "session_id": answer["session_id"]})
        assert again.structured_content["session_id"] == answer["session_id"]
        history = await service.history(answer["session_id"])
        assert [message["role"] for message in history] == ["user", "assistant"] * 2
        assert history[1]["parts"][0]["text"] == answer["answer"]
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("ask_Off", {"question": "x"})


@pytest.mark.parametrize("era", ERAS)
async def test_progress_is_told_to_a_client_that_wants_it(start_service: StartService, era: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with start_service("mock;tokens=30;gap=30") as service, mcp_client(service.port, era) as client:
        await client.call_tool("ask_Georges", {"question": "quietly"})
        assert told == []
        result = await client.call_tool("ask_Georges", {"question": "aloud"}, progress_callback=note)
    assert len(told) > 1
    assert [progress for progress, _ in told] == sorted({progress for progress, _ in told})
    assert text_of(result).startswith("".join(message or "" for _, message in told))


async def test_an_answer_names_its_sources(start_service: StartService) -> None:
    passage = "A finished turn is appended to the spool, and then final is sent."
    async with fake_knowledge(hit("bees", "Bees make honey."), hit("spool", passage)) as knowledge:
        rico = [{"name": "Rico", "class_path": "agentic_backend.agent.rag"}]
        ai = {"knowledge_flow_url": knowledge.base_url, "agents": rico}
        async with start_service(ai=ai) as service, mcp_client(service.port) as client:
            result = await client.call_tool("ask_Rico", {"question": "Where is a finished turn appended?"})
            page = f"http://127.0.0.1:{service.port}"
    assert text_of(result) == f"{passage} [1]"
    source = result.structured_content["sources"][0]
    assert (source["number"], source["document_id"]) == (1, "spool")
    (link,) = [block for block in result.content if isinstance(block, ResourceLink)]
    assert link.uri == source["url"]
    assert link.uri.startswith(f"{page}/documents/spool")


@pytest.mark.parametrize("era", ERAS)
async def test_a_question_to_the_user_is_a_form(start_service: StartService, tool_server: ToolServer, era: str) -> None:
    person = Person(chosen("allow"))
    async with (
        scripted(NOTES, DONE) as model,
        start_service(**sections(model, tool_server)) as service,
        mcp_client(service.port, era, elicitation_callback=person) as client,
    ):
        result = await client.call_tool("ask_Sammy", {"question": "Note milk"})
        assert (result.structured_content["status"], text_of(result)) == ("final", "I noted milk.")
        (form,) = person.asked
        assert form.requested_schema["properties"]["choice"]["enum"] == ["allow", "deny"]
        assert await used(tool_server, "note") == 1
        history = await service.history(result.structured_content["session_id"])
        assert len({message["exchange_id"] for message in history}) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_form_that_is_declined_leaves_the_question_open(
    start_service: StartService, tool_server: ToolServer, era: str
) -> None:
    person = Person(ElicitResult(action="decline"))
    async with (
        scripted(NOTES, says("Not noted.")) as model,
        start_service(**sections(model, tool_server)) as service,
        mcp_client(service.port, era, elicitation_callback=person) as client,
    ):
        asked = await client.call_tool("ask_Sammy", {"question": "Note milk"})
        assert asked.structured_content["status"] == "awaiting_human"
        assert await used(tool_server, "note") == 0
        session_id = asked.structured_content["session_id"]
        denied = await client.call_tool("ask_Sammy", {"question": "deny", "session_id": session_id})
        assert text_of(denied) == "Not noted."
        assert await used(tool_server, "note") == 0


@pytest.mark.parametrize("era", ERAS)
async def test_without_forms_the_next_call_replies(
    start_service: StartService, tool_server: ToolServer, era: str
) -> None:
    async with (
        scripted(NOTES, DONE) as model,
        start_service(**sections(model, tool_server), doors={"mcp_sessions_per_user": 0}) as service,
        mcp_client(service.port, era) as client,
    ):
        asked = await client.call_tool("ask_Sammy", {"question": "Note milk"})
        waiting = asked.structured_content
        assert (waiting["status"], asked.is_error) == ("awaiting_human", False)
        assert waiting["question"]["choices"][0]["id"] == "allow"
        named = {"session_id": waiting["session_id"]}
        unclear = await client.call_tool("ask_Sammy", {"question": "What do you mean?", **named})
        assert unclear.structured_content == waiting
        assert await used(tool_server, "note") == 0
        done = await client.call_tool("ask_Sammy", {"question": "1", **named})
        assert done.structured_content["exchange_id"] == waiting["exchange_id"]
        assert text_of(done) == "I noted milk."
        assert await used(tool_server, "note") == 1


async def test_a_form_answers_its_own_question_alone(start_service: StartService, tool_server: ToolServer) -> None:
    """What a client says of where it was is its own word: it opens nothing that is another's, or was not asked."""
    async with (
        scripted(NOTES, DONE) as model,
        start_service(**sections(model, tool_server), security=SECURITY) as service,
        mcp_client(service.port, MODERN, headers=headers_of("ada"), elicitation_callback=Person()) as ada,
        mcp_client(service.port, MODERN, headers=headers_of("ben")) as ben,
    ):
        asked = await ada.session.call_tool("ask_Sammy", {"question": "Note milk"}, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        state = asked.request_state
        assert state is not None
        session_id, _ = json.loads(state)
        forged = (
            state.replace(session_id, "unknown"),
            json.dumps([session_id, "x"]),
            "[]",
            "{",
            '["a\\u0000", "b"]',
            "1",
        )
        for client, said in ((ben, state), *((ada, one) for one in forged)):
            with pytest.raises(MCPError, match="Unknown requestState"):
                await client.session.call_tool(
                    "ask_Sammy",
                    {"question": "Note milk"},
                    request_state=said,
                    input_responses={"answer": chosen("allow")},
                    allow_input_required=True,
                )
        assert await used(tool_server, "note") == 0


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_gives_up_stops_the_turn(start_service: StartService, era: str) -> None:
    async with (
        scripted(stalls_after(token("a"))) as model,
        start_service(ai={"default_chat_model": {"settings": {"base_url": model.base_url}}}) as service,
        mcp_client(service.port, era) as client,
    ):
        begun = asyncio.Event()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        call = asyncio.ensure_future(client.call_tool("ask_Georges", {"question": "x"}, progress_callback=note))
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        assert service.running_turns == 1
        call.cancel()
        await asyncio.wait([call])
        await quiet(service)
        (session,) = await service.get("/chatbot/sessions")
        end = (await service.history(session["id"]))[-1]
        assert end["metadata"]["finish_reason"] == "cancelled"
        assert (await client.list_tools()).tools


@pytest.mark.parametrize("era", ERAS)
async def test_a_failure_is_a_result_with_our_code(start_service: StartService, era: str) -> None:
    async with (
        scripted(status(401, body=b'{"canary": 1}')) as model,
        start_service(
            ai={"default_chat_model": {"settings": {"base_url": model.base_url, "max_retries": 0}}},
            limits={"max_message_chars": 20},
        ) as service,
        mcp_client(service.port, era) as client,
    ):
        failed = await client.call_tool("ask_Georges", {"question": "x"})
        assert code_of(failed).startswith("llm_")
        assert "canary" not in str(failed)
        long = await client.call_tool("ask_Georges", {"question": "canary " * 10})
        assert (code_of(long), long.structured_content["field"]) == ("message_too_long", "question")
        for wrong in ({}, {"question": ""}, {"question": "a\x00"}, {"question": 1}):
            bad = await client.call_tool("ask_Georges", wrong)
            assert (code_of(bad), bad.structured_content["field"]) == ("bad_request", "question")
        unknown = await client.call_tool("ask_Georges", {"question": "x", "session_id": "unknown"})
        assert code_of(unknown) == "session_not_found"
        assert unknown.structured_content["field"] == "session_id"


async def test_a_user_with_enough_conversations_is_told_so(start_service: StartService) -> None:
    async with start_service(ai={"max_concurrent_sessions_per_user": 1}) as service, mcp_client(service.port) as client:
        first = (await client.call_tool("ask_Georges", {"question": "x"})).structured_content
        second = await client.call_tool("ask_Georges", {"question": "x"})
        assert code_of(second) == "forbidden"
        assert "You have 1 conversations already" in text_of(second)
        again = await client.call_tool("ask_Georges", {"question": "x", "session_id": first["session_id"]})
        assert not again.is_error


async def test_a_conversation_is_its_users_alone(start_service: StartService) -> None:
    async with (
        start_service(security=SECURITY) as service,
        mcp_client(service.port, headers=headers_of("ada")) as ada,
        mcp_client(service.port, headers=headers_of("ben")) as ben,
    ):
        mine = (await ada.call_tool("ask_Georges", {"question": "canary"})).structured_content
        foreign = await ben.call_tool("ask_Georges", {"question": "x", "session_id": mine["session_id"]})
        unknown = await ben.call_tool("ask_Georges", {"question": "x", "session_id": "unknown"})
        assert code_of(foreign) == "session_not_found"
        assert foreign == unknown


async def test_nobody_comes_in_without_a_token(start_service: StartService) -> None:
    user = {"enabled": True, "realm_url": "https://issuer.example/realm", "client_id": "turnwise"}
    async with start_service(security={**SECURITY, "user": user}) as service:
        async with service.http.post("/mcp", json=INITIALIZE, headers=ACCEPT) as answer:
            assert answer.status == 401
            where = f"http://127.0.0.1:{service.port}/.well-known/oauth-protected-resource/mcp"
            assert answer.headers["WWW-Authenticate"] == f'Bearer resource_metadata="{where}"'
        async with service.http.get(where) as answer:
            found = await answer.json()
        assert (found["resource"], found["authorization_servers"]) == (
            where.replace("/.well-known/oauth-protected-resource", ""),
            [user["realm_url"]],
        )


async def test_a_session_is_its_users_alone(start_service: StartService) -> None:
    async with start_service(security=SECURITY) as service:
        ada, ben = headers_of("ada"), headers_of("ben")
        session_id = await opened(service, **ada)
        assert await status_in(service, session_id, **ada) == 200
        assert await status_in(service, session_id, **ben) == 404
        assert await status_in(service, session_id, Authorization="Bearer none") == 401
        named = {**ACCEPT, "Mcp-Session-Id": session_id}
        async with service.http.delete("/mcp", headers={**named, **ben}) as answer:
            assert answer.status == 404
        async with service.http.delete("/mcp", headers={**named, **ada}) as answer:
            assert answer.status == 200
        assert await status_in(service, session_id, **ada) == 404


@pytest.mark.one_instance("its limit is of one process")
async def test_the_session_that_was_not_used_for_longest_makes_room(start_service: StartService) -> None:
    async with start_service(security=SECURITY, doors={"mcp_sessions_per_user": 2}) as service:
        ada, ben = headers_of("ada"), headers_of("ben")
        bens = await opened(service, **ben)
        first, second = await opened(service, **ada), await opened(service, **ada)
        assert await status_in(service, first, **ada) == 200
        third = await opened(service, **ada)
        found = [await status_in(service, one, **ada) for one in (first, second, third)]
        assert found == [200, 404, 200]
        assert await status_in(service, bens, **ben) == 200


@pytest.mark.one_instance("its limit is of one process")
async def test_a_flood_of_handshakes_leaves_as_many_sessions_as_a_user_may_have(start_service: StartService) -> None:
    async with start_service(security=SECURITY, doors={"mcp_sessions_per_user": 3}) as service:
        ada, ben = headers_of("ada"), headers_of("ben")
        bens = await opened(service, **ben)

        async def knock() -> str | None:
            async with service.http.post("/mcp", json=INITIALIZE, headers={**ACCEPT, **ada}) as answer:
                await answer.read()
                assert answer.status in (200, 429)
                return answer.headers.get("Mcp-Session-Id")

        knocked = [one for one in await asyncio.gather(*(knock() for _ in range(60))) if one is not None]
        found = [await status_in(service, one, **ada) for one in knocked]
        assert found.count(200) == 3
        assert await status_in(service, bens, **ben) == 200


@pytest.mark.one_instance("its limit is of one process")
async def test_sessions_that_all_answer_are_not_ended_for_another(start_service: StartService) -> None:
    async with (
        scripted(stalls_after(token("a"))) as model,
        start_service(
            ai={"default_chat_model": {"settings": {"base_url": model.base_url}}}, doors={"mcp_sessions_per_user": 1}
        ) as service,
        mcp_client(service.port, LEGACY) as client,
    ):
        begun = asyncio.Event()

        async def note(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        call = asyncio.ensure_future(client.call_tool("ask_Georges", {"question": "x"}, progress_callback=note))
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        async with service.http.post("/mcp", json=INITIALIZE, headers=ACCEPT) as answer:
            assert answer.status == 429
            assert (await answer.json())["detail"]["code"] == "rate_limited"
        assert hits(service, "mcp_sessions") == 1
        call.cancel()
        await asyncio.wait([call])


async def test_a_session_that_nobody_uses_ends(start_service: StartService) -> None:
    async with start_service(doors={"mcp_session_idle_s": 0.05}) as service:
        session_id = await opened(service)
        async with asyncio.timeout(PATIENCE_S):
            # Each look at it is a use of it.
            pause_s = 0.05
            while await status_in(service, session_id) != 404:
                pause_s *= 2
                await asyncio.sleep(pause_s)


@pytest.mark.one_instance("its process drains")
async def test_a_call_is_answered_at_the_end_and_none_is_begun(start_service: StartService) -> None:
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(start_service("mock;tokens=20;gap=50"))
        client = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{service.port}"))
        session_id = await opened(service)
        async with client.get("/mcp", headers={**ACCEPT, "Mcp-Session-Id": session_id}) as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST, DELETE")
        call = {"jsonrpc": "2.0", "id": 3, "method": "tools/call"}
        params = {"name": "ask_Georges", "arguments": {"question": "x"}, "_meta": {"progressToken": 1}}
        asked = await client.post(
            "/mcp", json={**call, "params": params}, headers={**ACCEPT, "Mcp-Session-Id": session_id}
        )
        await asked.content.readline()
        draining = asyncio.ensure_future(service.service.drain())
        rest = (await asked.read()).decode()
        assert '"status":"final"' in rest
        async with asyncio.timeout(PATIENCE_S):
            await draining
        async with client.post("/mcp", json=LIST, headers=ACCEPT) as answer:
            assert (answer.status, (await answer.json())["detail"]["code"]) == (503, "draining")


@pytest.mark.parametrize(
    ("origin", "status"), [("https://app.example", 200), ("https://evil.example", 403), ("null", 403)]
)
async def test_foreign_pages_are_refused(start_service: StartService, origin: str, status: int) -> None:
    security = {"user": {"enabled": False}, "authorized_origins": ["https://app.example"]}
    async with (
        start_service(security=security) as service,
        service.http.post("/mcp", json=INITIALIZE, headers={**ACCEPT, "Origin": origin}) as answer,
    ):
        assert answer.status == status


async def test_it_can_be_switched_off(start_service: StartService) -> None:
    async with (
        start_service(doors={"mcp": False}) as service,
        service.http.post("/mcp", json=INITIALIZE, headers=ACCEPT) as answer,
    ):
        assert answer.status == 404


async def test_a_signal_cuts_off_no_call(start_process: StartProcess) -> None:
    """The library of the SDK's event streams ends them at the signal, where it finds uvicorn's own handler of it."""
    async with start_process("mock;tokens=40;gap=50") as service:
        headers = {**ACCEPT, "Mcp-Session-Id": await opened(service)}
        params = {"name": "ask_Georges", "arguments": {"question": "x"}, "_meta": {"progressToken": 1}}
        call = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
        async with service.http.post("/mcp", json=call, headers=headers) as answer:
            await answer.content.readline()
            service.process.send(signal.SIGTERM)
            assert '"status":"final"' in (await answer.read()).decode()
        assert await service.ended() == 0
