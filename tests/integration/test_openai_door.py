"""The door of OpenAI's API on the whole service: by its own Python client, by LangChain's, and by raw requests."""

import asyncio
import io
import json
from contextlib import asynccontextmanager

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from agentic_backend.surfaces.openai.people import in_words
from backend_kit.auth import KeyScope
from tests.agentic_backend.knowledge.fake import fake_knowledge, hit
from tests.agentic_backend.llm.scripted import scripted
from tests.agentic_backend.surfaces.openai.front_ends import (
    LIBRE_CHAT_HEADERS,
    OPEN_WEBUI_HEADERS,
    TASKS,
    libre_chat,
    open_webui,
    open_webui_signed,
    open_webui_task,
)
from tests.integration.test_human import sections
from tests.integration.test_rico import PASSAGE, QUESTION, rico_on
from tests.support.api_keys import stored_key
from tests.support.following import ask_frame, stream_events
from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.tool_model import says, wants
from tests.support.tool_server import tool_server

__all__ = ["tool_server"]

CHAT = "/v1/chat/completions"
GEORGES = {"name": "Georges", "class_path": "agentic_backend.agent.plain"}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}
USER = {"role": "user", "content": "What is a turn?"}


@asynccontextmanager
async def client_of(service, key="local", **more):
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{service.port}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S, **more
    ) as client:
        yield client


@asynccontextmanager
async def langchain_of(service, **more):
    model = ChatOpenAI(
        model="Georges", base_url=f"http://127.0.0.1:{service.port}/v1", api_key="local", max_retries=0, **more
    )
    async with model.root_async_client:
        yield model


def sections_on(model, **agent):
    """A configuration whose plain agent has a scripted model."""
    return {
        "ai": {
            "default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}},
            "agents": [GEORGES | agent],
        }
    }


async def post(service, body, headers=None):
    """Status, headers and decoded body of a request."""
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with service.http.post(CHAT, data=data, headers=headers) as response:
        return response.status, response.headers, json.loads(await response.read())


async def asked_whole(service, body, headers=None):
    """The same for an answer in one piece."""
    return await post(service, {**body, "stream": False}, headers)


async def streamed(service, body, headers=None):
    """Headers and events of a stream, raw."""
    async with service.http.post(CHAT, json={**body, "stream": True}, headers=headers) as response:
        text = (await response.read()).decode()
        assert response.status == 200, text
    events = text.split("\n\n")
    assert events.pop() == ""
    return response.headers, events


def chunks_of(events):
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1] if not event.startswith(":")]


def content_of(chunks):
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


async def session_of(service, headers):
    async with service.http.get("/agentic/v1/chatbot/sessions", headers=headers) as response:
        return await response.json()


async def history_of(service, session_id, headers):
    async with service.http.get(f"/agentic/v1/chatbot/session/{session_id}/history", headers=headers) as response:
        assert response.status == 200
        return await response.json()


async def until(happened):
    """Wait for what a registry says; its end is the caller's to bound."""
    while not happened():  # noqa: ASYNC110 - a registry is asked
        await asyncio.sleep(0.01)


async def test_the_official_client_asks_and_gets_usage_that_is_right(service):
    async with client_of(service) as client:
        answer = await client.chat.completions.create(model="Georges", messages=[USER])
        stream = await client.chat.completions.create(
            model="Georges", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert answer.choices[0].finish_reason == "stop"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content != ""
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert await session_of(service, {}) == []


async def test_the_helper_that_gathers_a_stream_gathers_this_one(service):
    async with (
        client_of(service) as client,
        client.chat.completions.stream(model="Georges", messages=[USER]) as stream,
    ):
        kinds = {event.type async for event in stream}
        gathered = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert gathered.choices[0].message.content


async def test_langchains_client_asks_streams_and_counts(service):
    messages = [SystemMessage("Be brief."), HumanMessage("a"), AIMessage("b"), HumanMessage("c")]
    whole = None
    async with langchain_of(service, stream_usage=True) as model:
        said = await model.ainvoke(messages)
        async for chunk in model.astream(messages):
            whole = chunk if whole is None else whole + chunk
    assert said.text
    assert said.response_metadata["finish_reason"] == "stop"
    assert whole.text
    assert whole.usage_metadata["total_tokens"] > 0
    assert said.usage_metadata["total_tokens"] > 0


async def test_agents_are_models_and_so_is_each_of_their_choices(start_service, mock_llm):
    large = {"id": "large", "name": "mock;tokens=2", "settings": {"base_url": mock_llm.base_url}}
    agents = [GEORGES | {"further_models": ["large"]}, {"name": "Anna", "enabled": False}]
    async with start_service(ai={"agents": agents, "chat_models": [large]}) as service, client_of(service) as client:
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("Georges@large")
        answer = await client.chat.completions.create(model="Georges@large", messages=[USER])
        for unknown in ("Anna", "Georges@huge", "nobody"):
            with pytest.raises(openai.NotFoundError) as asked:
                await client.models.retrieve(unknown)
            assert asked.value.code == "model_not_found"
            with pytest.raises(openai.NotFoundError) as asked:
                await client.chat.completions.create(model=unknown, messages=[USER])
            assert (asked.value.param, asked.value.code) == ("model", "model_not_found")
    assert models == ["Georges", "Georges@default", "Georges@large"]
    assert (one.id, one.owned_by) == ("Georges@large", "turnwise")
    assert answer.model == "Georges@large"
    assert answer.usage.completion_tokens == 2


async def test_the_agent_sees_the_conversation_as_it_was_sent(start_service):
    async with scripted(says("One."), says("Two.")) as model, start_service(**sections_on(model)) as service:
        headers = {"X-Turnwise-Session": "s1"}
        await asked_whole(service, open_webui("First?"), headers)
        edited = {"role": "system", "content": "Be brief."}
        messages = [edited, {"role": "user", "content": "Zeroth?"}, {"role": "assistant", "content": "0"}, USER]
        await post(service, {"model": "Georges", "messages": messages}, headers)
        sent = model.requests[-1].body["messages"]
    assert [message["content"] for message in sent[1:]] == ["Zeroth?", "0", "What is a turn?"]
    assert sent[0]["content"].endswith("Be brief.")
    assert {message["role"] for message in sent[1:]} == {"user", "assistant"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [(OPEN_WEBUI_HEADERS, open_webui), (LIBRE_CHAT_HEADERS, libre_chat)],
    ids=["Open WebUI", "LibreChat"],
)
async def test_a_front_ends_conversation_is_one_session_with_its_turns_and_their_cost(service, headers, body):
    answered, events = await streamed(service, body("What is a turn?"), headers)
    first = content_of(chunks_of(events))
    chunks = chunks_of((await streamed(service, body("And then?", "What is a turn?", first), headers))[1])
    [session] = await session_of(service, headers)
    history = await service.history(session["id"])
    assert session["id"] == answered["X-Turnwise-Session-Id"]
    assert session["title"] == "What is a turn?"
    assert [message["parts"][0]["text"] for message in history if message["role"] == "user"] == [
        "What is a turn?",
        "And then?",
    ]
    spent = history[-1]["metadata"]["extras"]["usage"]
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (spent["input_tokens"], spent["output_tokens"])
    assert history[-1]["metadata"]["extras"]["ledger"]
    assert "X-Turnwise-Warning" not in answered


async def test_a_front_ends_users_have_sessions_of_their_own_by_its_key(start_service, database):
    secret = "another secret of thirty-two bytes"
    security = {**SECURITY, "api_keys": {"act_as_secret": secret}}
    front = stored_key(database, "webui", frozenset({KeyScope.ASK, KeyScope.READ, KeyScope.ACT_AS}))
    plain = stored_key(database, "webui")
    async with start_service(security=security) as service:
        ids = []
        for user in ("ann", "bob"):
            headers = open_webui_signed(front, user, secret)
            answered, events = await streamed(service, open_webui("What is a turn?"), headers)
            chunks_of(events)
            await asked_whole(service, open_webui_task(TASKS["follow-ups"]), headers)
            [session] = await session_of(service, headers)
            assert session["id"] == answered["X-Turnwise-Session-Id"]
            assert session["user_id"] == f"via:openwebui:{user}"
            assert len(await history_of(service, session["id"], headers)) == 2
            ids.append(session["id"])
        assert len(set(ids)) == 2
        refusals = {
            403: open_webui_signed(plain, "ann", secret),
            401: {**OPEN_WEBUI_HEADERS, "Authorization": f"Bearer {front}"},
        }
        for status, headers in refusals.items():
            refused = await asked_whole(service, open_webui("What is a turn?"), headers)
            assert (refused[0], {*refused[2]}) == (status, {"error"})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_front_ends_task_goes_to_the_language_model_and_is_not_kept(start_service, mock_llm, stream):
    async with scripted(says('{"title": "Turns"}')) as model:
        language = {"name": "small", "settings": {"base_url": model.base_url}}
        async with start_service(ai={"default_language_model": language}) as service:
            body = open_webui_task(TASKS["title"])
            if stream:
                _, events = await streamed(service, body, OPEN_WEBUI_HEADERS)
                said = content_of(chunks_of(events))
            else:
                status, _, answer = await post(service, body, OPEN_WEBUI_HEADERS)
                assert status == 200
                said, usage = answer["choices"][0]["message"]["content"], answer["usage"]
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 4)
            assert await session_of(service, OPEN_WEBUI_HEADERS) == []
        assert len(model.requests) == 1
    assert said == '{"title": "Turns"}'


async def test_tasks_have_the_rate_of_asks_and_take_none_of_them(start_service):
    """Whatever begins as a task would be a way around the rate."""
    limits = {"per_user": {"asks_per_min": 1, "burst": 1}}
    async with start_service(limits=limits) as service:
        task = open_webui_task(TASKS["title"])
        assert (await post(service, task))[0] == 200
        assert (await asked_whole(service, open_webui("What?")))[0] == 200
        status, headers, answer = await post(service, task)
    assert (status, answer["error"]["code"]) == (429, "rate_limited")
    assert 1 <= int(headers["Retry-After"]) <= 60


async def test_citations_open_the_passage_on_the_page(start_service):
    async with (
        fake_knowledge(hit("spool", PASSAGE)) as knowledge,
        start_service(**rico_on(knowledge), doors={"public_url": "https://chat.example.org/"}) as service,
    ):
        asked = {"model": "Rico", "messages": [{"role": "user", "content": QUESTION}]}
        _, events = await streamed(service, asked)
        async with client_of(service) as client:
            whole = await client.chat.completions.create(**asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(events)]
    [annotations] = [delta["annotations"] for delta in deltas if "annotations" in delta]
    [citation] = [annotation["url_citation"] for annotation in annotations]
    text = content_of(chunks_of(events))
    assert text[citation["start_index"] : citation["end_index"]] == "[1]"
    assert citation["url"].startswith("https://chat.example.org/documents/spool")
    assert citation["title"]
    assert deltas[-2] == {"annotations": annotations}
    assert deltas[-1] == {}
    assert whole.choices[0].message.annotations[0].url_citation.url == citation["url"]


async def test_without_an_address_of_ours_links_lead_to_where_the_request_was_sent(start_service):
    async with fake_knowledge(hit("spool", PASSAGE)) as knowledge, start_service(**rico_on(knowledge)) as service:
        _, _, answer = await post(service, {"model": "Rico", "messages": [{"role": "user", "content": QUESTION}]})
        url = answer["choices"][0]["message"]["annotations"][0]["url_citation"]["url"]
        assert url.startswith(f"http://127.0.0.1:{service.port}/documents/spool")
        async with service.http.get(url) as page:
            assert page.status == 200


async def test_a_clients_tools_are_called_by_the_client(start_service):
    async with scripted(wants(("c1", "clock", '{"zone": "UTC"}')), says("It is noon.")) as model:
        async with start_service(**sections_on(model, client_tools=True)) as service, client_of(service) as client:
            asked = {"model": "Georges", "tools": [CLOCK]}
            headers = {"X-Turnwise-Session": "s1"}
            stream = await client.chat.completions.create(**asked, messages=[USER], stream=True, extra_headers=headers)
            chunks = [chunk async for chunk in stream]
            [call] = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
            assert (call.index, call.id, call.function.name) == (0, "c1", "clock")
            assert json.loads(call.function.arguments) == {"zone": "UTC"}
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
            called = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}
            messages = [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [called]},
                {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
            ]
            answer = await client.chat.completions.create(**asked, messages=messages, extra_headers=headers)
        offered, sent = (request.body for request in model.requests)
    assert answer.choices[0].message.content == "It is noon."
    assert [tool["function"]["name"] for tool in offered["tools"]] == ["clock"]
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent["messages"][-1]["content"] == "12:00"


async def test_langchain_binds_tools_to_an_agent(start_service):
    async with (
        scripted(wants(("c1", "clock", "{}")), says("It is noon.")) as model,
        start_service(**sections_on(model, client_tools=True)) as service,
        langchain_of(service) as chat,
    ):
        bound = chat.bind_tools([CLOCK])
        called = await bound.ainvoke("What time is it?")
        assert [call["name"] for call in called.tool_calls] == ["clock"]
        told = ToolMessage("12:00", tool_call_id=called.tool_calls[0]["id"])
        answer = await bound.ainvoke([HumanMessage("What time is it?"), called, told])
    assert answer.text == "It is noon."


async def test_what_an_agent_does_not_take_is_named_in_a_header(service):
    body = {"model": "Georges", "messages": [USER], "tools": [CLOCK], "temperature": 0.1, "max_tokens": 5}
    status, headers, answer = await post(service, body)
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "stop")
    assert headers["X-Turnwise-Warning"] == "ignored: temperature, max_tokens, tools"


async def test_a_question_to_a_person_is_an_answer_and_the_next_message_its_reply(start_service, tool_server):
    note = wants(("c1", "note", '{"text": "milk"}'), text="I will note it.")
    async with (
        scripted(note, says("I noted ", "milk.")) as model,
        start_service(**sections(model, tool_server)) as service,
    ):
        headers = {"X-Turnwise-Session": "s1"}
        body = open_webui("Note milk", model="Sammy")
        answered, events = await streamed(service, body, headers)
        chunks = chunks_of(events)
        asked = content_of(chunks)
        assert "1. " in asked
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        assert (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["completion_tokens"]) == (10, 5)
        again = await asked_whole(service, open_webui("Hm", "Note milk", asked, model="Sammy"), headers)
        repeated = again[2]["choices"][0]["message"]["content"]
        assert repeated.startswith("Please answer with one of the choices.")
        assert repeated.endswith(asked.rpartition("I will note it.\n\n")[2])
        assert again[2]["usage"]["total_tokens"] == 0
        reply = open_webui("allow", "Note milk", asked, "Hm", repeated, model="Sammy")
        status, headers, answer = await asked_whole(service, reply, headers)
        history = await service.history(headers["X-Turnwise-Session-Id"])
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "I noted milk."
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (20, 4)
    assert headers["X-Turnwise-Exchange-Id"] == answered["X-Turnwise-Exchange-Id"]
    assert [message["exchange_id"] for message in history] == [answered["X-Turnwise-Exchange-Id"]] * len(history)
    assert (history[-1]["channel"], history[-1]["parts"][0]["text"]) == ("final", "I noted milk.")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_exchange_that_another_client_named_is_answered_whatever_its_name(start_service, tool_server, stream):
    """It stands in a header of the answer."""
    note = wants(("c1", "note", '{"text": "milk"}'))
    async with (
        scripted(says("Hello."), note, says("I noted milk.")) as model,
        start_service(**sections(model, tool_server)) as service,
    ):
        named = {"X-Turnwise-Session": "s1"}
        _, headers, _ = await asked_whole(service, open_webui("Hello", model="Sammy"), named)
        ask = ask_frame(headers["X-Turnwise-Session-Id"], "été\r\nX-Other: 1", "Note milk", agent_id="Sammy")
        async with service.http.post("/agentic/v1/chatbot/query/stream", json=ask) as response:
            question = [json.loads(event["data"]) async for event in stream_events(response) if "data" in event][-1]
        shown = in_words(question["payload"])
        reply = open_webui("allow", "Note milk", shown, model="Sammy") | {"stream": stream}
        async with service.http.post(CHAT, json=reply, headers=named) as response:
            text = await response.text()
    assert response.status == 200
    assert "I noted milk." in text
    assert response.headers["X-Turnwise-Exchange-Id"] == "%C3%A9t%C3%A9%0D%0AX-Other%3A%201"
    assert "X-Other" not in response.headers


async def test_a_call_that_was_stopped_before_its_result_does_not_end_the_conversation(start_service):
    """Models refuse a call that no result follows."""
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    stopped = {"role": "assistant", "content": None, "tool_calls": [call]}
    async with scripted(says("A turn.")) as model, start_service(**sections_on(model, client_tools=True)) as service:
        asked = {"model": "Georges", "messages": [USER, stopped, USER], "tools": [CLOCK]}
        assert (await asked_whole(service, asked))[0] == 200
        [request] = model.requests
    assert [message["role"] for message in request.body["messages"]] == ["system", "user", "user"]


async def test_who_goes_on_to_something_else_asks_anew(start_service, tool_server):
    note = wants(("c1", "note", '{"text": "milk"}'))
    async with scripted(note, says("Hello.")) as model, start_service(**sections(model, tool_server)) as service:
        headers = {"X-Turnwise-Session": "s1"}
        first = await asked_whole(service, open_webui("Note milk", model="Sammy"), headers)
        other = await asked_whole(service, open_webui("Hello", model="Sammy"), headers)
    assert other[2]["choices"][0]["message"]["content"] == "Hello."
    assert other[1]["X-Turnwise-Exchange-Id"] != first[1]["X-Turnwise-Exchange-Id"]


async def test_errors_before_the_answer_have_their_shape_and_name_the_field(start_service):
    async with start_service(limits={"max_message_chars": 50}) as service:
        cases = [
            (b"{", 400, None, "bad_request"),
            ({"messages": [USER]}, 400, "model", "missing_required_parameter"),
            ({"model": "Georges", "messages": [{"role": "user"}]}, 400, "messages[0].content",
             "missing_required_parameter"),
            ({"model": "Georges", "messages": [USER], "n": 2}, 400, "n", "invalid_value"),
            (open_webui("x" * 51), 400, "messages[0].content", "message_too_long"),
            ({"model": "Rico", "messages": [USER]}, 404, "model", "model_not_found"),
            (b"x" * (1024 * 1024 + 1), 413, None, "too_large"),
        ]  # fmt: skip
        for body, status, param, code in cases:
            answered, headers, answer = await post(service, body)
            assert (answered, answer["error"]["param"], answer["error"]["code"]) == (status, param, code)
            assert {*answer} == {"error"}
            assert {*answer["error"]} == {"message", "type", "param", "code"}
            assert headers["x-should-retry"] == "false"


async def test_what_no_route_answers_is_refused_in_their_shape(service):
    """Clients of this API ask for embeddings, speech, files: what they then read is the one shape that they know."""
    cases = [
        ("POST", "/v1/embeddings", 404, "unknown_url"),
        ("GET", "/v1", 404, "unknown_url"),
        ("GET", "/v1/", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models/Georges", 405, "method_not_allowed"),
    ]
    for method, path, status, code in cases:
        async with service.http.request(method, path) as response:
            answer = await response.json()
            assert (response.status, answer["error"]["code"]) == (status, code), path
            assert {*answer["error"]} == {"message", "type", "param", "code"}
            assert answer["error"]["type"] == "invalid_request_error"
            assert response.headers["x-should-retry"] == "false"
            assert (response.headers.get("Allow") is not None) == (status == 405)
    async with service.http.post(f"{CHAT}/", json=open_webui("What?")) as response:  # led to the path without the slash
        assert response.status == 200


@pytest.mark.parametrize(
    "body", [open_webui("What?"), open_webui("What?") | {"stream": False}, open_webui_task(TASKS["title"])]
)
async def test_a_page_of_another_origin_gets_no_answer_and_costs_none(start_service, body):
    """Without authentication a page that a person visits could ask at their cost, although it can read nothing."""
    page = "https://portal.example.org"
    security = {"user": {"enabled": False}, "authorized_origins": [page]}
    async with start_service(security=security) as service:
        foreign = {"Origin": "https://evil.example", "Content-Type": "text/plain", "X-Turnwise-Session": "s1"}
        status, _, answer = await post(service, body, foreign)
        assert (status, answer["error"]["code"]) == (403, "forbidden")
        assert await session_of(service, {}) == []
        async with service.http.post(CHAT, json=body, headers={**foreign, "Origin": page}) as response:
            assert response.status == 200
            readable = {name.strip().lower() for name in response.headers["Access-Control-Expose-Headers"].split(",")}
            ours = {name.lower() for name in response.headers if name.lower().startswith("x-turnwise-")}
    assert ours | {"x-should-retry", "retry-after", "x-request-id"} <= readable


async def test_without_a_key_it_is_401_in_their_shape(start_service):
    async with start_service(security=SECURITY) as service:
        async with client_of(service, key="wrong") as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.models.list()
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="Georges", messages=[USER])
        assert refused.value.code == "invalid_api_key"
        assert refused.value.response.headers["www-authenticate"] == "Bearer"
        async with client_of(service, key=token_of("ann")) as client:
            named = {"X-Turnwise-Session": "s1"}
            answer = await client.chat.completions.create(model="Georges", messages=[USER], extra_headers=named)
        assert answer.choices[0].message.content
        [session] = await session_of(service, headers_of("ann"))
        assert session["user_id"] == "ann"
        assert await session_of(service, headers_of("bob")) == []


@pytest.mark.one_instance("its limit is of one process")
async def test_a_full_service_says_when_to_come_back(start_service):
    limits = {"max_turns": 1, "queue_length": 0, "queue_deadline_s": 0.01}
    async with (
        held_model() as model,
        start_service(ai=model.ai, limits=limits) as service,
        client_of(service) as client,
    ):
        stream = await client.chat.completions.create(model="Georges", messages=[USER], stream=True)
        await anext(stream.__aiter__())
        for how in ({}, {"stream": True}):
            with pytest.raises(openai.InternalServerError) as refused:
                await client.chat.completions.create(model="Georges", messages=[USER], **how)
            assert (refused.value.status_code, refused.value.code) == (503, "overloaded")
            assert refused.value.response.headers["x-should-retry"] == "true"
            assert int(refused.value.response.headers["retry-after"]) >= 1
        model.go.set()
        await stream.close()


async def test_a_failure_in_the_turn_is_an_error_for_both_kinds_of_answer(start_service):
    async with start_service("mock;garbage=1;tokens=20", ai={"timeout": {}}) as service, client_of(service) as client:
        with pytest.raises(openai.InternalServerError) as whole:
            await client.chat.completions.create(model="Georges", messages=[USER])
        assert (whole.value.status_code, whole.value.code) == (502, "llm_protocol")
        _, events = await streamed(service, {"model": "Georges", "messages": [USER]})
        assert chunks_of(events)[-1]["error"]["code"] == "llm_protocol"
        stream = await client.chat.completions.create(model="Georges", messages=[USER], stream=True)
        with pytest.raises(openai.APIError) as broken:
            _ = [chunk async for chunk in stream]
    assert broken.value.code == "llm_protocol"


@pytest.mark.one_instance("who leaves before the question is in Postgres leaves nothing behind")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [None, "s1"])
async def test_a_client_that_leaves_stops_its_turn(start_service, name, stream):
    async with held_model("zero") as model, start_service(ai=model.ai) as service:
        headers = {} if name is None else {"X-Turnwise-Session": name}
        every = [each.running.turns for each in service.instances]
        registries = [turns.unkept if name is None else turns.registry for turns in every]
        body = {"model": "Georges", "messages": [USER], "stream": stream}
        asking = asyncio.create_task(service.http.post(CHAT, json=body, headers=headers).__aenter__())
        async with asyncio.timeout(PATIENCE_S):
            if stream:
                response = await asking
                await response.content.readuntil(b"zero")
                response.close()
            else:
                await until(lambda: any(registry.running for registry in registries))
                asking.cancel()
            await until(lambda: not any(registry.running for registry in registries))
        if name is not None:
            [session] = await session_of(service, {})
            history = await service.history(session["id"])
            assert history[-1]["metadata"]["finish_reason"] == "cancelled"


async def test_a_client_may_leave_its_turn_to_end(start_service):
    async with held_model("zero") as model, start_service(ai=model.ai) as service:
        headers = {"X-Turnwise-Session": "s1", "X-Turnwise-On-Disconnect": "continue"}
        async with service.http.post(CHAT, json=open_webui("What?"), headers=headers) as response:
            await response.content.readuntil(b"zero")
            exchange_id = response.headers["X-Turnwise-Exchange-Id"]
            response.close()
        turn = service.turn(exchange_id)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: not turn.followed)
            model.go.set()
            await turn.wait_ended()
        history = await service.history(turn.ask.session_id)
    assert history[-1]["parts"][0]["text"] == "zeroone two three"


async def test_asks_of_one_conversation_are_answered_in_their_order(service):
    headers = {"X-Turnwise-Session": "s1"}
    asks = (asked_whole(service, open_webui(f"Question {n}?"), headers) for n in range(3))
    assert [status for status, _, _ in await asyncio.gather(*asks)] == [200] * 3
    [session] = await session_of(service, {})
    history = await service.history(session["id"])
    asked = [message["parts"][0]["text"] for message in history if message["role"] == "user"]
    assert sorted(asked) == [f"Question {n}?" for n in range(3)]


async def test_silence_is_filled_with_comments(start_service):
    async with held_model("zero") as model, start_service(ai=model.ai, deadlines={"heartbeat_s": 1}) as service:
        async with service.http.post(CHAT, json=open_webui("What?")) as response:
            async with asyncio.timeout(PATIENCE_S):
                head = await response.content.readuntil(b": heartbeat\n\n")
            model.go.set()
            rest = await response.content.read()
        _, events = response.headers, (head + rest).decode().split("\n\n")[:-1]
    assert content_of(chunks_of(events)) == "zeroone two three"


async def test_where_it_is_off_there_is_none(start_service):
    async with start_service(doors={"openai": False}) as service, service.http.get("/v1/models") as response:
        assert response.status == 404


async def test_too_many_streams_of_one_user_are_refused_in_their_shape(start_service):
    async with (
        held_model() as model,
        start_service(ai=model.ai, limits={"per_user": {"sockets": 1}}) as service,
        service.http.post(CHAT, json=open_webui("What?")) as first,
    ):
        assert first.status == 200
        status, headers, answer = await post(service, open_webui("What?"))
        model.go.set()
    assert (status, answer["error"]["code"], headers["Retry-After"]) == (429, "rate_limited", "2")
    assert answer["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_who_has_all_their_sessions_is_told_so(start_service, stream):
    async with start_service(ai={"max_concurrent_sessions_per_user": 1}) as service:
        body = {**open_webui("What?"), "stream": stream}
        assert (await asked_whole(service, body, {"X-Turnwise-Session": "s1"}))[0] == 200
        status, _, answer = await post(service, body, {"X-Turnwise-Session": "s2"})
        assert (await asked_whole(service, body, {"X-Turnwise-Session": "s1"}))[0] == 200
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (403, "forbidden", "permission_error")
    assert answer["error"]["message"] == "Session limit reached (1 sessions per user)."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_somebody_else_stops_ends_with_an_error(start_service, stream):
    async with held_model("zero") as model, start_service(ai=model.ai) as service:
        body = {**open_webui("What?"), "stream": stream}
        async with asyncio.TaskGroup() as group:
            ask = service.http.post(CHAT, json=body, headers={"X-Turnwise-Session": "s1"})
            asking = group.create_task(ask.__aenter__())
            async with asyncio.timeout(PATIENCE_S):
                await until(lambda: service.running_turns)
                [session] = await session_of(service, {})
                for each in service.instances:
                    await each.running.registry.forget(session["id"], "admin")
            response = await asking
        text = (await response.read()).decode()
    error = chunks_of(text.split("\n\n")[:-1])[-1]["error"] if stream else json.loads(text)["error"]
    assert error["code"] == "cancelled"
    assert response.status == (200 if stream else 409)


async def test_a_warning_and_the_session_are_in_the_headers_of_a_stream_too(service):
    named = {"X-Conversation-Id": "c1"}
    headers, _ = await streamed(service, {"model": "Georges", "messages": [USER], "seed": 1}, named)
    assert headers["X-Turnwise-Warning"] == "ignored: seed"
    assert headers["Content-Type"].startswith("text/event-stream")
    assert [session["id"] for session in await session_of(service, {})] == [headers["X-Turnwise-Session-Id"]]
