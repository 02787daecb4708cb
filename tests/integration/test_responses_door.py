"""`/v1/responses` on the whole service: by OpenAI's client and LangChain's, cut anywhere, killed and begun again."""

import asyncio
import json
from contextlib import aclosing
from functools import partial
from uuid import UUID

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage

from backend_kit.auth import KeyScope
from tests.agentic_backend.knowledge.fake import fake_knowledge, hit
from tests.agentic_backend.llm.scripted import scripted
from tests.agentic_backend.surfaces.openai.front_ends import TASKS
from tests.agentic_backend.surfaces.openai.told import joined
from tests.integration.test_human import sections
from tests.integration.test_openai_door import GEORGES, client_of, langchain_of, sections_on, until
from tests.integration.test_rico import PASSAGE, QUESTION, rico_on
from tests.support.agentic import start_process
from tests.support.api_keys import stored_key
from tests.support.following import ask_frame, over_stream
from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.telling_agent import ANSWER, telling
from tests.support.tool_model import says, wants
from tests.support.tool_server import tool_server

__all__ = ["start_process", "tool_server"]

RESPONSES = "/v1/responses"
ASKED = {"model": "Georges", "input": "What is a turn?"}
CLOCK = {"type": "function", "name": "clock", "description": "The time.", "parameters": {"type": "object"}}
MESSAGE = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
REASONING = [
    "response.output_item.added",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done",
    "response.output_item.done",
]


def kinds(events):
    """The types of events, each once where it repeats."""
    found = []
    for event in events:
        if found[-1:] != [event["type"]]:
            found.append(event["type"])
    return found


async def hear(service, body=None, *, response=None, after=None, most=None, headers=None):
    """The events of a new response, or of one that is there; the connection is cut after `most` of them."""
    query = "?stream=true" + ("" if after is None else f"&starting_after={after}")
    asking = (
        service.http.post(RESPONSES, json={**body, "stream": True}, headers=headers)
        if response is None
        else service.http.get(f"{RESPONSES}/{response}{query}", headers=headers)
    )
    heard = []
    async with asking as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        while most is None or len(heard) < most:
            block = (await answer.content.readuntil(b"\n\n")) if not answer.content.at_eof() else b""
            if not block:
                break
            if block.startswith(b":"):
                continue
            name, data = block.decode().rstrip("\n").split("\n")
            heard.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {heard[-1]['type']}"
            if heard[-1]["type"] in ("response.completed", "response.failed", "response.incomplete"):
                break
        answer.close()
    numbers = [event["sequence_number"] for event in heard]
    assert numbers == sorted(set(numbers))
    return heard


async def refused(service, method, path, *, headers=None, **body):
    """Status, code and param of what is refused."""
    async with service.http.request(method, path, headers=headers, **body) as response:
        error = (await response.json())["error"]
        return response.status, error["code"], error["param"]


async def get(service, response, headers=None):
    async with service.http.get(f"{RESPONSES}/{response}", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def ended(service, response):
    """The response once it has ended: as pollers do."""
    async with asyncio.timeout(PATIENCE_S):
        while (got := await get(service, response))["status"] in ("queued", "in_progress"):  # noqa: ASYNC110 - a poller
            await asyncio.sleep(0.02)
    return got


@pytest.mark.blocks_loop("the client builds its types at its first answer")
async def test_the_official_client_asks_and_streams_and_both_are_one_response(service):
    async with client_of(service) as client:
        answer = await client.responses.create(**ASKED, metadata={"for": "me"}, instructions="Be brief.")
        async with client.responses.stream(**ASKED) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        raw = await client.responses.create(**ASKED, stream=True)
        types = [event.type async for event in raw]
        kept = await client.responses.retrieve(answer.id)
    assert (answer.status, answer.object, answer.model) == ("completed", "response", "Georges")
    assert answer.output_text == final.output_text != ""
    assert kept == answer
    assert (kept.metadata, kept.instructions, kept.previous_response_id) == ({"for": "me"}, "Be brief.", None)
    assert kept.usage.total_tokens == kept.usage.input_tokens + kept.usage.output_tokens > 0
    assert final.usage.output_tokens == answer.usage.output_tokens
    told = ["response.created", "response.in_progress", *MESSAGE, "response.completed"]
    assert kinds([{"type": event.type} for event in events]) == kinds([{"type": one} for one in types]) == told
    sessions = await service.get("/chatbot/sessions")
    assert len(sessions) == 3


async def test_a_response_follows_another_and_an_older_one_may_be_gone_back_to(start_service):
    async with (
        scripted(says("One."), says("Two."), says("Three."), says("Four.")) as model,
        start_service(**sections_on(model)) as service,
        client_of(service) as client,
    ):
        first = await client.responses.create(model="Georges", input="First?", instructions="Be brief.")
        second = await client.responses.create(model="Georges", input="Second?", previous_response_id=first.id)
        other = await client.responses.create(model="Georges", input="Other?", previous_response_id=first.id)
        last = await client.responses.create(model="Georges", input="Last?", previous_response_id=other.id)
        sent = [[(one["role"], one["content"]) for one in request.body["messages"]] for request in model.requests]
        kept = await client.responses.retrieve(second.id)
        sessions = await service.get("/chatbot/sessions")
        history = await service.history(sessions[0]["id"])
    assert sent[0][0][1].endswith("Be brief.")
    assert not sent[1][0][1].endswith("Be brief.")
    assert [one[1:] for one in sent] == [
        [("user", "First?")],
        [("user", "First?"), ("assistant", "One."), ("user", "Second?")],
        [("user", "First?"), ("assistant", "One."), ("user", "Other?")],
        [("user", "First?"), ("assistant", "One."), ("user", "Other?"), ("assistant", "Three."), ("user", "Last?")],
    ]
    assert kept.previous_response_id == first.id
    assert (last.output_text, len(sessions), len(history)) == ("Four.", 1, 8)


async def test_a_response_that_a_branch_has_superseded_may_be_gone_back_to(start_service):
    steps = [says(text) for text in ("One.", "Two.", "Deux.", "Three.", "Four.")]
    async with scripted(*steps) as model:
        settings = sections_on(model)
        async with start_service(**settings) as service, client_of(service) as client:
            first = await client.responses.create(model="Georges", input="First?", conversation="a")
            second = await client.responses.create(model="Georges", input="Second?", conversation="a")
            (session,) = await service.get("/chatbot/sessions")
            async for _ in over_stream(service, ask_frame(session["id"], "fork", "Zweitens?", after_rank=1)):
                pass
            await service.flush()
        async with start_service(**settings) as service, client_of(service) as client:
            await client.responses.create(model="Georges", input="Third?", conversation="a")
            live = [one["content"] for one in model.requests[-1].body["messages"][1:]]
            await client.responses.create(model="Georges", input="Fourth?", previous_response_id=second.id)
            gone_back = [one["content"] for one in model.requests[-1].body["messages"][1:]]
    assert first.output_text == "One."
    assert live == ["First?", "One.", "Zweitens?", "Deux.", "Third?"]
    assert gone_back == ["First?", "One.", "Second?", "Two.", "Fourth?"]


def said(request):
    """What a model was sent, without the system's text."""
    return [(one["role"], one.get("content"), one.get("tool_calls")) for one in request.body["messages"][1:]]


def reads(service):
    """How often history was read from Postgres."""
    return service.sample("app_db_statement_seconds_count", op="history", pool="main")


@pytest.mark.one_instance("counts what one process keeps")
async def test_a_conversation_of_lately_is_what_history_has_without_being_read(start_service):
    """What follows a response sees the same, whether this process remembers it or has to read it."""
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Zeroth?"},
        {"role": "assistant", "content": "Zero."},
        {"role": "user", "content": "First?"},
    ]
    outputs = [{"type": "function_call_output", "call_id": "c1", "output": "12:00"}]
    answers = [
        says("One."),
        wants(("c1", "clock", "{}"), text="Let me see."),
        says("Noon."),
        says("Other."),
        says("A."),
    ]
    more = [says("B."), *(says(f"Then {number}.") for number in range(6)), says("C.")]
    again = [says(f"Again {number}.") for number in range(7)]
    async with scripted(*answers, *more, *again) as model:
        settings = sections_on(model, client_tools=True)
        asking = {"model": "Georges", "tools": [CLOCK]}
        async with start_service(**settings) as service, client_of(service) as client:
            create = partial(client.responses.create, **asking)
            first = await create(input=items, instructions="In English.")
            called = await create(input="Now?", previous_response_id=first.id, instructions="In French.")
            noon = await create(input=outputs, previous_response_id=called.id)
            other = await create(input="Other?", previous_response_id=called.id)  # the call stays without a result
            named = [await create(input=text, conversation="c") for text in ("A?", "B?")]
            followed = [first, called, noon, other, *named]
            for response in followed:
                await create(input="Then?", previous_response_id=response.id)
            await create(input="C?", conversation="c")
            assert reads(service) == 1  # of the conversation that was new
        async with start_service(**settings) as service, client_of(service) as client:
            create = partial(client.responses.create, **asking)
            for response in followed:
                await create(input="Then?", previous_response_id=response.id)
            assert reads(service) == len(followed)
    sent = list(map(said, model.requests))
    assert sent[6:12] == sent[13:19]
    assert sent[12][:4] == sent[11][:4]


async def test_what_was_asked_at_once_in_a_conversation_is_all_part_of_it(start_service):
    """Neither of the two has seen the other: so what they were given is not the conversation that follows."""
    async with (
        scripted(says("One."), says("Two."), says("Three.")) as model,
        start_service(**sections_on(model)) as service,
        client_of(service) as client,
    ):
        ask = partial(client.responses.create, model="Georges", conversation="c")
        await asyncio.gather(ask(input="First?"), ask(input="First?"))
        await ask(input="Last?")
    assert [one[:2] for one in said(model.requests[2])] == [
        ("user", "First?"),
        ("assistant", "One."),
        ("user", "First?"),
        ("assistant", "Two."),
        ("user", "Last?"),
    ]


async def test_what_is_not_to_be_stored_is_not(start_service):
    async with (
        scripted(says("One."), says("Two.")) as model,
        start_service(**sections_on(model)) as service,
        client_of(service) as client,
    ):
        unkept = await client.responses.create(**ASKED, store=False)
        assert (unkept.output_text, unkept.store) == ("One.", False)
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.retrieve(unkept.id)
        assert (missing.value.code, missing.value.param) == ("response_not_found", "response_id")
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.create(**ASKED, previous_response_id=unkept.id)
        assert (missing.value.code, missing.value.param) == ("previous_response_not_found", "previous_response_id")
        assert await service.get("/chatbot/sessions") == []
        first = await client.responses.create(**ASKED)
        again = await client.responses.create(**ASKED, previous_response_id=first.id, store=False)
        assert again.status == "completed"
        assert len(await service.history((await service.get("/chatbot/sessions"))[0]["id"])) == 2


async def test_the_synchronous_client_does_too(service):
    def ask():
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{service.port}/v1", api_key="local", max_retries=0, timeout=PATIENCE_S
        ) as client:
            with client.responses.stream(**ASKED) as stream:
                text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
                final = stream.get_final_response()
            with client.responses.stream(response_id=final.id, starting_after=3) as stream:
                rest = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            return text, rest, final

    text, rest, final = await asyncio.to_thread(ask)
    assert text == rest == final.output_text


async def test_langchains_client_asks_streams_and_goes_on(start_service):
    async with (
        scripted(*(says("A ", "turn.") for _ in range(4))) as model,
        start_service(**sections_on(model)) as service,
        langchain_of(service, use_responses_api=True) as chat,
        langchain_of(service, use_previous_response_id=True) as goes_on,
    ):
        first = await chat.ainvoke("What is a turn?")
        whole = None
        async for chunk in chat.astream([HumanMessage("What?"), first, HumanMessage("And then?")]):
            whole = chunk if whole is None else whole + chunk
        one = await goes_on.ainvoke("One?")
        await goes_on.ainvoke([HumanMessage("One?"), one, HumanMessage("Two?")])
    assert first.text == whole.text == "A turn."
    assert first.response_metadata["id"].startswith("resp_")
    assert (first.usage_metadata["input_tokens"], first.usage_metadata["output_tokens"]) == (20, 4)
    assert whole.usage_metadata["total_tokens"] == 24
    sent = [[one["content"] for one in request.body["messages"][1:]] for request in model.requests]
    assert sent[1] == ["What?", "A turn.", "And then?"]
    assert sent[3] == ["One?", "A turn.", "Two?"]


async def test_langchain_binds_tools_to_an_agent(start_service):
    function = {key: value for key, value in CLOCK.items() if key != "type"}
    async with (
        scripted(wants(("c1", "clock", '{"zone": "UTC"}'), text="Let me look."), says("It is noon.")) as model,
        start_service(**sections_on(model, client_tools=True)) as service,
        langchain_of(service, use_responses_api=True) as chat,
    ):
        bound = chat.bind_tools([{"type": "function", "function": function}])
        called = None
        async for chunk in bound.astream("What time is it?"):
            called = chunk if called is None else called + chunk
        [call] = called.tool_calls
        told = ToolMessage("12:00", tool_call_id=call["id"])
        answer = await bound.ainvoke([HumanMessage("What time is it?"), called, told])
    assert (call["name"], call["args"]) == ("clock", {"zone": "UTC"})
    assert answer.text == "It is noon."
    sent = model.requests[1].body["messages"]
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "tool"]
    assert (sent[2]["content"], sent[2]["tool_calls"][0]["id"]) == ("Let me look.", "c1")


async def test_a_clients_tools_are_called_by_the_client(start_service):
    asked = {"model": "Georges", "tools": [CLOCK]}
    async with (
        scripted(wants(("c1", "clock", '{"zone": "UTC"}')), says("It is noon.")) as model,
        start_service(**sections_on(model, client_tools=True)) as service,
        client_of(service) as client,
    ):
        async with client.responses.stream(**asked, input="What time is it?") as stream:
            types = [event.type async for event in stream]
            called = await stream.get_final_response()
        [call] = called.output
        assert (call.type, call.call_id, call.name) == ("function_call", "c1", "clock")
        assert json.loads(call.arguments) == {"zone": "UTC"}
        assert "response.function_call_arguments.done" in types
        outputs = [{"type": "function_call_output", "call_id": "c1", "output": "12:00"}]
        answer = await client.responses.create(**asked, input=outputs, previous_response_id=called.id)
        items = await client.responses.input_items.list(answer.id)
        unknown = [{"type": "function_call_output", "call_id": "c2", "output": "12:00"}]
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.responses.create(**asked, input=unknown, previous_response_id=called.id)
    assert answer.output_text == "It is noon."
    assert wrong.value.param == "input[0].call_id"
    assert [(item.type, item.call_id, item.output) for item in items.data] == [("function_call_output", "c1", "12:00")]
    sent = model.requests[1].body["messages"]
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "tool"]
    assert sent[3]["content"] == "12:00"


async def test_what_the_question_had_before_it_is_kept_with_it(start_service):
    async with (
        scripted(says("One."), says("Two.")) as model,
        start_service(**sections_on(model)) as service,
        client_of(service) as client,
    ):
        items = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Zeroth?"}]},
            {"role": "assistant", "content": "Zero."},
            {"role": "user", "content": "First?"},
        ]
        first = await client.responses.create(model="Georges", input=items)
        await client.responses.create(model="Georges", input="Second?", previous_response_id=first.id)
        listed = await client.responses.input_items.list(first.id, order="asc")
    assert [one.content[0].text for one in listed.data] == ["Be brief.", "Zeroth?", "Zero.", "First?"]
    assert [one["content"] for one in model.requests[1].body["messages"][1:]] == [
        "Zeroth?",
        "Zero.",
        "First?",
        "One.",
        "Second?",
    ]


async def test_a_conversation_is_one_session_and_goes_on(start_service):
    async with (
        scripted(says("One."), says("Two."), says("Three."), says("Four.")) as model,
        start_service(**sections_on(model)) as service,
        client_of(service) as client,
    ):
        for text in ("First?", "Second?"):
            answer = await client.responses.create(model="Georges", input=text, conversation="about turns")
        whole = [
            {"role": "user", "content": "Zeroth?"},
            {"role": "assistant", "content": "Zero."},
            {"role": "user", "content": "Alone?"},
        ]
        named = await client.responses.create(
            model="Georges", input=whole, extra_headers={"X-Turnwise-Session": "about turns"}
        )
        await client.responses.create(model="Georges", input="Last?", conversation={"id": "about turns"})
        sessions = await service.get("/chatbot/sessions")
        with pytest.raises(openai.BadRequestError) as both:
            await client.responses.create(**ASKED, conversation="a", previous_response_id=named.id)
    assert both.value.param == "conversation"
    assert answer.conversation.id == "about turns"
    assert len(sessions) == 1
    sent = [[one["content"] for one in request.body["messages"][1:]] for request in model.requests]
    assert sent[:2] == [["First?"], ["First?", "One.", "Second?"]]
    assert sent[2:] == [["Zeroth?", "Zero.", "Alone?"], ["Zeroth?", "Zero.", "Alone?", "Three.", "Last?"]]


async def test_citations_are_annotations(start_service):
    async with (
        fake_knowledge(hit("spool", PASSAGE)) as knowledge,
        start_service(**rico_on(knowledge), doors={"public_url": "https://chat.example.org/"}) as service,
        client_of(service) as client,
        client.responses.stream(model="Rico", input=QUESTION) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_response()
    [added] = [event for event in events if event.type == "response.output_text.annotation.added"]
    [part] = final.output[-1].content
    [cited] = part.annotations
    assert cited.url == added.annotation.url
    assert cited.url.startswith("https://chat.example.org/documents/spool")
    assert part.text[cited.start_index : cited.end_index] == "[1]"


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_reasoning_is_told_as_summaries_and_a_late_one_after_the_answer(start_service):
    async with start_service(ai={"agents": [telling()]}) as service, client_of(service) as client:
        heard = await hear(service, {"model": "Teller", "input": "tell"})
        answer = await client.responses.retrieve(heard[0]["response"]["id"])
    told = ["response.created", "response.in_progress", *REASONING, *REASONING, *REASONING, *MESSAGE, *REASONING]
    assert kinds(heard) == [*told, "response.completed"]
    output = heard[-1]["response"]["output"]
    texts = [item["summary"][0]["text"] if item["type"] == "reasoning" else "" for item in output]
    assert texts == ["I look for Zimtschnecke.", "Looked.", "Now I know.", "", "Is it?"]
    assert answer.output_text == ANSWER
    assert answer.output[3].phase == "final_answer"


async def cut_everywhere(service, whole, response):
    """Cut a stream behind each event: what comes after it is what was left."""
    for cut, event in enumerate(whole, 1):
        rest = await hear(service, response=response, after=event["sequence_number"]) if cut < len(whole) else []
        assert joined(whole[:cut] + rest) == joined(whole), cut


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_response_cut_at_any_event_goes_on_where_it_was_after_a_restart_too(start_service, tool_server):
    """Told as it runs, as it was kept, and from history: the same events under the same numbers."""
    note = wants(("c1", "note", '{"text": "milk"}'), text="I will note it.")
    async with scripted(note, says("I ", "noted ", "milk.")) as model:
        settings = sections(model, tool_server)
        async with start_service(**settings) as service:
            asked = await hear(service, {"model": "Sammy", "input": "Note milk"})
            question = asked[-1]["response"]
            await cut_everywhere(service, asked, question["id"])
            yes = {"model": "Sammy", "input": "allow", "previous_response_id": question["id"]}
            answered = await hear(service, yes)
            answer = answered[-1]["response"]
            await cut_everywhere(service, answered, answer["id"])
            # The first one is what it was, though its exchange has gone on.
            await cut_everywhere(service, asked, question["id"])
            assert await get(service, question["id"]) == question
            assert await get(service, answer["id"]) == answer
        async with start_service(**settings) as service:
            await cut_everywhere(service, answered, answer["id"])
            assert await get(service, answer["id"]) == answer
            # Of a response that has been answered, history does not know what it took, nor whether a model reasoned.
            told = await get(service, question["id"])
            assert told == {**question, "usage": None, "completed_at": None}
            renumbered = await refused(service, "GET", f"{RESPONSES}/{question['id']}?stream=true&starting_after=3")
            assert renumbered == (409, "events_renumbered", "starting_after")
    assert kinds(asked)[2:8] == MESSAGE
    assert asked[7]["item"]["phase"] == "commentary"
    assert [item["type"] for item in answer["output"]] == ["mcp_call", "message"]
    assert answer["output"][0]["output"] == "kept: milk"
    assert question["output"][1]["name"] == "note"
    assert question["output"][2]["content"][0]["text"].startswith("Allow note?")
    assert answer["previous_response_id"] == question["id"]


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_running_response_cut_at_any_event_goes_on_where_it_was(start_service):
    tokens = 10

    async def cut_at(number):
        heard = await hear(service, {**ASKED, "background": True}, most=number)
        response = heard[0]["response"]["id"]
        ended_ = heard[-1]["type"] == "response.completed"
        rest = [] if ended_ else await hear(service, response=response, after=heard[-1]["sequence_number"])
        assert joined(heard + rest) == joined(await hear(service, response=response))

    async with start_service(f"mock;tokens={tokens};gap=25") as service, asyncio.TaskGroup() as group:
        for number in range(1, 4 + tokens + 5):
            group.create_task(cut_at(number))


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
@pytest.mark.parametrize("keep", [False, True])
async def test_reasoning_that_is_not_kept_makes_other_numbers_and_that_is_said(start_service, keep):
    settings = {"ai": {"agents": [telling()]}, "history": {"keep_thoughts": keep}}
    async with start_service(**settings) as service:
        heard = await hear(service, {"model": "Teller", "input": "tell"})
        response = heard[-1]["response"]["id"]
        await cut_everywhere(service, heard, response)
    async with start_service(**settings) as service:
        if keep:
            await cut_everywhere(service, heard, response)
            assert await get(service, response) == heard[-1]["response"]
        else:
            path = f"{RESPONSES}/{response}?stream=true&starting_after=5"
            assert await refused(service, "GET", path) == (409, "events_renumbered", "starting_after")
            told = await hear(service, response=response)
            assert told[-1]["response"]["output"][-1]["content"][0]["text"] == ANSWER


async def test_a_question_to_a_person_is_answered_by_the_next_response(start_service, tool_server):
    note = wants(("c1", "note", '{"text": "milk"}'), text="I will note it.")
    async with (
        scripted(note, says("I noted milk.")) as model,
        start_service(**sections(model, tool_server)) as service,
        client_of(service) as client,
    ):
        asked = await client.responses.create(model="Sammy", input="Note milk")
        assert "1. " in asked.output[-1].content[0].text
        again = await client.responses.create(model="Sammy", input="Hm", previous_response_id=asked.id)
        assert again.output_text.startswith("Please answer with one of the choices.")
        assert again.usage.total_tokens == 0
        async with client.responses.stream(model="Sammy", input="Hm", previous_response_id=again.id) as stream:
            assert (await stream.get_final_response()).output_text == again.output_text
        answer = await client.responses.create(model="Sammy", input="allow", previous_response_id=again.id)
        assert answer.output_text == "I noted milk."
        late = await client.responses.create(model="Sammy", input="deny", previous_response_id=asked.id)
        assert late.id != answer.id
        history = await service.history((await service.get("/chatbot/sessions"))[0]["id"])
    assert len({message["exchange_id"] for message in history}) == 2


async def test_a_question_is_answered_in_a_conversation_and_in_a_named_session_too(start_service, tool_server):
    note = wants(("c1", "note", '{"text": "milk"}'))
    async with (
        scripted(note, says("Noted."), note, says("Noted again.")) as model,
        start_service(**sections(model, tool_server)) as service,
        client_of(service) as client,
    ):
        how = {"model": "Sammy", "conversation": "c"}
        await client.responses.create(input="Note milk", **how)
        assert (await client.responses.create(input="allow", **how)).output_text == "Noted."
        named = {"model": "Sammy", "extra_headers": {"X-Turnwise-Session": "s"}}
        asked = await client.responses.create(input="Note milk", **named)
        items = [
            {"role": "user", "content": "Note milk"},
            {"role": "assistant", "content": asked.output_text},
            {"role": "user", "content": "1"},
        ]
        assert (await client.responses.create(input=items, **named)).output_text == "Noted again."


async def test_a_background_response_runs_on_and_is_polled_and_streamed(start_service):
    async with held_model("zero") as model, start_service(ai=model.ai) as service, client_of(service) as client:
        begun = await client.responses.create(**ASKED, background=True)
        assert (begun.status, begun.background) in (("in_progress", True), ("queued", True))
        async with asyncio.timeout(PATIENCE_S):
            while not (got := await client.responses.retrieve(begun.id)).output_text:  # noqa: ASYNC110 - a poller
                await asyncio.sleep(0.02)
        assert (got.status, got.output_text, got.output[0].status) == ("in_progress", "zero", "in_progress")
        with pytest.raises(openai.ConflictError) as running:
            await client.responses.create(**ASKED, previous_response_id=begun.id)
        assert running.value.param == "previous_response_id"
        stream = await client.responses.retrieve(begun.id, stream=True, starting_after=3)
        model.go.set()
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == "zeroone two three"
        done = await ended(service, begun.id)
    assert (done["status"], done["background"]) == ("completed", True)
    assert done["output"][0]["content"][0]["text"] == "zeroone two three"


@pytest.mark.one_instance("another instance says queued before it has heard of a running turn")
async def test_a_background_response_has_a_deadline_of_its_own(start_service):
    async with (
        held_model("zero") as model,
        start_service(ai=model.ai, deadlines={"turn_s": 0.2}, doors={"background_s": 3600}) as service,
        client_of(service) as client,
    ):
        begun = await client.responses.create(**ASKED, background=True)
        with pytest.raises(openai.InternalServerError) as late:
            await client.responses.create(**ASKED)
        assert late.value.code == "turn_deadline"
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"
        model.go.set()
        assert (await ended(service, begun.id))["status"] == "completed"


@pytest.mark.one_instance("its limit is of one process")
async def test_a_background_response_that_waits_is_queued_and_one_without_room_is_refused(start_service):
    limits = {"max_turns": 1, "queue_length": 1, "queue_deadline_s": PATIENCE_S}
    async with (
        held_model() as model,
        start_service(ai=model.ai, limits=limits) as service,
        client_of(service) as client,
    ):
        running = await client.responses.create(**ASKED, background=True)
        queued = await client.responses.create(**ASKED, background=True)
        assert (queued.status, (await client.responses.retrieve(queued.id)).status) == ("queued", "queued")
        with pytest.raises(openai.InternalServerError) as full:
            await client.responses.create(**ASKED, background=True)
        assert full.value.code == "overloaded"
        model.go.set()
        for one in (running, queued):
            assert (await ended(service, one.id))["status"] == "completed"


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_response_is_cancelled_and_stays_so(start_service):
    async with held_model("zero") as model:
        async with start_service(ai=model.ai) as service, client_of(service) as client:
            begun = await client.responses.create(**ASKED, background=True)
            async with aclosing(streamed(client, begun.id)) as stream:
                async for event in stream:
                    if event.type == "response.output_text.delta":
                        cancelled = await client.responses.cancel(begun.id)
                    last = event
            assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
            assert (cancelled.status, cancelled.output_text) == ("cancelled", "zero")
            assert await client.responses.cancel(begun.id) == cancelled
        async with start_service(ai=model.ai) as service, client_of(service) as client:
            assert await client.responses.retrieve(begun.id) == cancelled
            await cut_everywhere(service, await hear(service, response=begun.id), begun.id)


async def streamed(client, response):
    async for event in await client.responses.retrieve(response, stream=True):
        yield event


async def test_a_client_that_leaves_stops_a_response_that_is_not_in_the_background(start_service):
    async with held_model("zero") as model, start_service(ai=model.ai) as service:
        heard = await hear(service, ASKED, most=5)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: not service.running_turns)
        assert (await get(service, heard[0]["response"]["id"]))["status"] == "cancelled"


async def test_a_response_is_deleted_with_its_conversation_where_it_is_alone(start_service):
    async with held_model("zero") as model, start_service(ai=model.ai) as service, client_of(service) as client:
        running = await client.responses.create(**ASKED, background=True)
        await client.responses.delete(running.id)
        assert await refused(service, "GET", f"{RESPONSES}/{running.id}") == (404, "response_not_found", "response_id")
        model.go.set()
        first = await client.responses.create(**ASKED)
        second = await client.responses.create(**ASKED, previous_response_id=first.id)
        [session] = await service.get("/chatbot/sessions")
        for one in (first, second):
            async with service.http.delete(f"{RESPONSES}/{one.id}") as answer:
                error = (await answer.json())["error"]
                assert (answer.status, answer.headers["x-should-retry"]) == (409, "false")
            assert f"DELETE /agentic/v1/chatbot/session/{session['id']}" in error["message"]
        alone = await client.responses.create(**ASKED)
        async with service.http.delete(f"{RESPONSES}/{alone.id}") as answer:
            assert await answer.json() == {"id": alone.id, "object": "response", "deleted": True}
        assert [one["id"] for one in await service.get("/chatbot/sessions")] == [session["id"]]
        assert await refused(service, "DELETE", f"{RESPONSES}/{alone.id}") == (
            404,
            "response_not_found",
            "response_id",
        )


async def test_another_users_response_is_not_there(start_service):
    async with (
        held_model("zero") as model,
        start_service(security=SECURITY, ai=model.ai) as service,
        client_of(service, key=token_of("ann")) as client,
    ):
        ann, bob = headers_of("ann"), headers_of("bob")
        running = await client.responses.create(**ASKED, background=True)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: service.running_turns)

        async def is_nowhere():
            missing = (404, "response_not_found", "response_id")
            for method, path in (
                ("GET", ""),
                ("GET", "?stream=true"),
                ("GET", "?stream=true&starting_after=1"),
                ("GET", "/input_items"),
                ("POST", "/cancel"),
                ("DELETE", ""),
            ):
                assert await refused(service, method, f"{RESPONSES}/{running.id}{path}", headers=bob) == missing
            body = {**ASKED, "previous_response_id": running.id}
            assert await refused(service, "POST", RESPONSES, headers=bob, json=body) == (
                404,
                "previous_response_not_found",
                "previous_response_id",
            )

        await is_nowhere()
        model.go.set()
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: not service.running_turns)
        await is_nowhere()
        assert (await get(service, running.id, ann))["status"] == "completed"
        assert await refused(service, "GET", f"{RESPONSES}/{running.id}", headers={"Authorization": ""}) == (
            401,
            "invalid_api_key",
            None,
        )


async def test_after_a_kill_a_background_response_runs_again_and_old_numbers_are_refused(start_process):
    body = {**ASKED, "background": True}
    async with start_process("mock;tokens=9;stall=3") as service:
        begun = await hear(service, body, most=5)
        response = begun[0]["response"]["id"]
        await service.ask_on_disk(str(UUID(response[-32:])))
        await service.process.until(service.process.kill)
    async with start_process("mock;tokens=4") as service:
        done = await ended(service, response)
        assert (done["status"], done["background"], done["id"]) == ("completed", True, response)
        assert done["created_at"] == begun[0]["response"]["created_at"]
        old = f"{RESPONSES}/{response}?stream=true&starting_after={begun[-1]['sequence_number']}"
        assert await refused(service, "GET", old) == (409, "events_renumbered", "starting_after")
        heard = await hear(service, response=response)
        assert heard[0]["sequence_number"] == 1_000_000_000
        await cut_everywhere(service, heard, response)
    async with start_process("mock;tokens=2") as service:
        assert await refused(service, "GET", old) == (409, "events_renumbered", "starting_after")
        await cut_everywhere(service, heard, response)
        assert await get(service, response) == done


async def test_after_a_kill_a_response_that_its_client_followed_is_not_run_again(start_process):
    async with (
        start_process("mock;tokens=9;stall=3") as service,
        service.http.post(RESPONSES, json={**ASKED, "stream": True}) as answer,
    ):
        block = await answer.content.readuntil(b"\n\n")
        response = json.loads(block.partition(b"data: ")[2])["response"]["id"]
        await service.ask_on_disk(answer.headers["X-Turnwise-Exchange-Id"])
        await service.process.until(service.process.kill)
    async with start_process("mock") as service:
        told = await get(service, response)
        assert (told["status"], told["output"]) == ("cancelled", [])
        path = f"{RESPONSES}/{response}?stream=true&starting_after=1"
        assert await refused(service, "GET", path) == (409, "events_renumbered", "starting_after")


async def test_what_fails_is_an_error_an_event_and_a_failed_response(start_service):
    async with start_service("mock;garbage=1;tokens=20", ai={"timeout": {}}) as service, client_of(service) as client:
        with pytest.raises(openai.InternalServerError) as whole:
            await client.responses.create(**ASKED)
        assert (whole.value.status_code, whole.value.code) == (502, "llm_protocol")
        heard = await hear(service, ASKED)
        assert heard[-1]["type"] == "response.failed"
        assert heard[-1]["response"]["error"]["code"] == "llm_protocol"
        kept = await client.responses.retrieve(heard[0]["response"]["id"])
        assert (kept.status, kept.error.code) == ("failed", "llm_protocol")
        begun = await client.responses.create(**ASKED, background=True)
        assert (await ended(service, begun.id))["error"]["code"] == "llm_protocol"


async def test_what_nothing_comes_of_is_named_in_a_header(service):
    body = {**ASKED, "temperature": 0.1, "max_output_tokens": 5, "reasoning": {"effort": "high"}, "tools": [CLOCK]}
    async with service.http.post(RESPONSES, json={**body, "include": ["reasoning.encrypted_content"]}) as answer:
        assert (answer.status, (await answer.json())["status"]) == (200, "completed")
        ignored = "temperature, max_output_tokens, include, reasoning.effort, tools"
        assert answer.headers["X-Turnwise-Warning"] == f"ignored: {ignored}"
        assert answer.headers["X-Turnwise-Session-Id"]
        assert answer.headers["X-Turnwise-Exchange-Id"]


async def test_a_stream_too_many_is_refused_in_their_shape(start_service):
    async with (
        held_model() as model,
        start_service(ai=model.ai, limits={"per_user": {"sockets": 1}}) as service,
        client_of(service) as client,
    ):
        begun = await client.responses.create(**ASKED, background=True)
        path = f"{RESPONSES}/{begun.id}?stream=true"
        async with service.http.get(path) as first:
            assert first.status == 200
            await first.content.readuntil(b"\n\n")
            assert await refused(service, "GET", path) == (429, "rate_limited", None)
            model.go.set()


async def test_what_is_wrong_is_named(service):
    made = {"model": "Georges", "input": "What?"}
    for body, status, param, code in (
        ({"input": "What?"}, 400, "model", "missing_required_parameter"),
        ({"model": "Georges"}, 400, "input", "missing_required_parameter"),
        ({**made, "model": "nobody"}, 404, "model", "model_not_found"),
        ({**made, "background": True, "store": False}, 400, "background", "invalid_value"),
        ({**made, "text": {"format": {"type": "json_schema"}}}, 400, "text.format.type", "invalid_value"),
        ({**made, "input": "x" * 32_001}, 400, "input", "message_too_long"),
        ({**made, "previous_response_id": "resp_1"}, 404, "previous_response_id", "previous_response_not_found"),
    ):
        assert await refused(service, "POST", RESPONSES, json=body) == (status, code, param)
    for after in ("x", "-1", "1" * 16):
        path = f"{RESPONSES}/resp_1?stream=true&starting_after={after}"
        assert await refused(service, "GET", path) == (400, "invalid_type", "starting_after")
    assert await refused(service, "GET", f"{RESPONSES}/resp_1") == (404, "response_not_found", "response_id")
    assert await service.get("/chatbot/sessions") == []


async def test_a_key_finds_the_responses_of_its_agents_alone(start_service, database):
    ask, read = frozenset({KeyScope.ASK}), frozenset({KeyScope.READ})
    georges, anna = stored_key(database, scopes=ask, agents=("Georges",)), stored_key(database, agents=("Anna",))
    reader = stored_key(database, scopes=read)
    async with (
        start_service(security=SECURITY, ai={"agents": [GEORGES, {**GEORGES, "name": "Anna"}]}) as service,
        client_of(service, georges) as client,
    ):
        answer = await client.responses.create(**ASKED)
        bearer = {key: {"Authorization": f"Bearer {key}"} for key in (georges, anna, reader)}
        for key in (georges, reader):
            assert (await get(service, answer.id, bearer[key]))["id"] == answer.id
        missing = (404, "response_not_found", "response_id")
        assert await refused(service, "GET", f"{RESPONSES}/{answer.id}", headers=bearer[anna]) == missing
        body = {"model": "Anna", "input": "What?", "previous_response_id": answer.id}
        assert (await refused(service, "POST", RESPONSES, headers=bearer[anna], json=body))[0] == 404
        for method, what in (("POST", "/cancel"), ("DELETE", "")):
            path = f"{RESPONSES}/{answer.id}{what}"
            assert await refused(service, method, path, headers=bearer[reader]) == (403, "forbidden", "scope:ask")


async def test_a_conversation_of_which_not_all_was_kept_is_not_taken_for_whole(service):
    items = [{"role": "user", "content": "x" * 70_000}, {"role": "assistant", "content": "Oh."}]
    async with client_of(service) as client:
        answer = await client.responses.create(model="Georges", input=[*items, {"role": "user", "content": "And?"}])
        with pytest.raises(openai.BadRequestError) as not_whole:
            await client.responses.create(**ASKED, previous_response_id=answer.id)
    assert (not_whole.value.param, not_whole.value.code) == ("previous_response_id", "conversation_not_kept")


async def test_what_was_asked_elsewhere_in_its_session_is_part_of_a_conversation(start_service):
    async with (
        scripted(says("One."), says("Two."), says("Three.")) as model,
        start_service(**sections_on(model)) as service,
        client_of(service) as client,
    ):
        named = {"X-Turnwise-Session": "s"}
        await client.responses.create(model="Georges", input="First?", conversation="s")
        await client.chat.completions.create(
            model="Georges", messages=[{"role": "user", "content": "Second?"}], extra_headers=named
        )
        await client.responses.create(model="Georges", input="Third?", conversation="s")
    assert [one["content"] for one in model.requests[2].body["messages"][1:]] == [
        *("First?", "One.", "Second?", "Two.", "Third?")
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_front_ends_task_goes_to_the_language_model_and_is_not_kept(start_service, stream):
    async with scripted(says('{"title": "Turns"}')) as model:
        language = {"name": "small", "settings": {"base_url": model.base_url}}
        async with start_service(ai={"default_language_model": language}) as service, client_of(service) as client:
            asked = {"model": "Georges", "input": TASKS["title"]}
            if stream:
                async with client.responses.stream(**asked) as events:
                    answer = await events.get_final_response()
            else:
                answer = await client.responses.create(**asked)
            assert await service.get("/chatbot/sessions") == []
    assert (answer.output_text, answer.store) == ('{"title": "Turns"}', False)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (20, 4)


async def test_nothing_is_kept_of_a_temporary_chat(service):
    headers = {"X-OpenWebUI-Chat-Id": "local:abc"}
    async with service.http.post(RESPONSES, json=ASKED, headers=headers) as answer:
        told = await answer.json()
        assert (told["status"], told["store"]) == ("completed", False)
        assert "X-Turnwise-Session-Id" not in answer.headers
    body = {**ASKED, "background": True}
    assert await refused(service, "POST", RESPONSES, json=body, headers=headers) == (400, "invalid_value", "background")
    assert await service.get("/chatbot/sessions") == []


async def test_a_page_of_another_origin_neither_asks_nor_stops(service):
    async with client_of(service) as client:
        kept = await client.responses.create(**ASKED)
    foreign = {"Origin": "https://elsewhere.example"}
    path = f"{RESPONSES}/{kept.id}"
    for method, where in (("POST", RESPONSES), ("GET", path), ("POST", f"{path}/cancel"), ("DELETE", path)):
        assert (await refused(service, method, where, json=ASKED, headers=foreign))[:2] == (403, "forbidden")
    assert len(await service.get("/chatbot/sessions")) == 1
