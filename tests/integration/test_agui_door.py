"""The door of AG-UI through the real service: what its clients see of a run, cut anywhere, asked and answered."""

import asyncio
import json
from copy import deepcopy

import pytest

from tests.agentic_backend.llm.scripted import scripted, status
from tests.integration.test_cancel import SLOW, until_open
from tests.integration.test_human import DONE, NOTES, sections, used
from tests.support.agentic import start_process
from tests.support.agui import ENDS, Thread, custom, hear, joined, kinds, over_agui, refused
from tests.support.held_model import held_model
from tests.support.people import SECURITY, headers_of
from tests.support.telling_agent import ANSWER, REVIEW, SECRET, telling
from tests.support.tool_model import says, wants
from tests.support.tool_server import tool_server

__all__ = ["start_process", "tool_server"]

TELLER = {"ai": {"agents": [telling()]}}
TEXT = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
CALL = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
REASONING = [
    "REASONING_START",
    "REASONING_MESSAGE_START",
    "REASONING_MESSAGE_CONTENT",
    "REASONING_MESSAGE_END",
    "REASONING_END",
]


def run_of(*between):
    """The types of a run's events that ends well."""
    return ["RUN_STARTED", "STEP_STARTED", *between, "STEP_FINISHED", "RUN_FINISHED"]


def interrupts(events):
    assert events[-1]["outcome"]["type"] == "interrupt", events[-1]
    return events[-1]["outcome"]["interrupts"]


def resolved(interrupt, payload=None, status="resolved"):
    return {"interruptId": interrupt["id"], "status": status, **({} if payload is None else {"payload": payload})}


async def asked(service, **more):
    """A thread in which Sammy waits for a person, and the events so far."""
    thread = Thread("Sammy", **more)
    thread.say("Note milk")
    return thread, await thread.run(service, "r1")


async def test_a_run_is_a_turn_of_the_thread_s_session(service):
    thread = Thread()
    thread.say("Hello")
    events = await thread.run(service, "r1")
    assert kinds(events) == run_of(*TEXT)
    (sessions,) = await service.get("/chatbot/sessions")
    about = events[0]["metadata"]["turnwise"]
    assert about == {"session_id": sessions["id"], "exchange_id": "r1"}
    history = await service.history(sessions["id"])
    assert [message["exchange_id"] for message in history] == ["r1", "r1"]
    assert thread.text() == history[1]["parts"][0]["text"]
    (ledger,) = custom(events, "ledger")
    assert {row["phase"] for row in ledger["ledger"]} > {"llm_invoke", "spool_ack"}
    assert custom(events, "session")[0]["title"] == "Hello"
    usage = history[1]["metadata"]["extras"]["usage"]
    assert events[-1]["outcome"] == {"type": "success"}
    assert events[-1]["usage"] == [
        {
            "model": "mock",
            "inputTokens": usage["input_tokens"],
            "outputTokens": usage["output_tokens"],
            "totalTokens": usage["input_tokens"] + usage["output_tokens"],
        }
    ]
    thread.say("And you?")
    await thread.run(service, "r2")
    assert len(await service.history(sessions["id"])) == 4


async def test_the_messages_are_the_history_and_a_branch_is_one(start_service):
    async with (
        scripted(says("One."), says("Two."), says("Three.")) as model,
        start_service("scripted", ai={"default_chat_model": {"settings": {"base_url": model.base_url}}}) as service,
    ):
        thread = Thread(more={"context": [{"description": "Place", "value": "Oslo"}]})
        thread.say("First")
        await thread.run(service, "r1")
        thread.say("Second")
        await thread.run(service, "r2")
        thread.messages[0]["content"] = "Edited"
        del thread.messages[2:]
        thread.messages.insert(0, {"id": "s", "role": "system", "content": "Be brief."})
        thread.say("Another second")
        await thread.run(service, "r3")
        sent = [[(one["role"], one["content"]) for one in request.body["messages"]] for request in model.requests]
        assert [one[1:] for one in sent] == [
            [("user", "First")],
            [("user", "First"), ("assistant", "One."), ("user", "Second")],
            [("user", "Edited"), ("assistant", "One."), ("user", "Another second")],
        ]
        assert sent[0][0][1].endswith("Place: Oslo")
        assert sent[2][0][1].endswith("Place: Oslo\n\nBe brief.")


async def test_reasoning_custom_events_and_notes_are_told(start_service):
    async with start_service(**TELLER) as service:
        thread = Thread("Teller")
        thread.say("tell")
        events = await thread.run(service, "r1")
        assert kinds(events) == run_of(*REASONING, *REASONING, *REASONING, *TEXT, *REASONING, *TEXT)
        assert [(one["role"], one.get("content")) for one in thread.messages[1:]] == [
            ("reasoning", f"I look for {SECRET}."),
            ("reasoning", "Looked."),
            ("reasoning", "Now I know."),
            ("assistant", ANSWER),
            ("reasoning", "Is it?"),
        ]
        assert custom(events, "custom") == [{"looking": [1, None, {"for": SECRET}]}, SECRET]


async def test_a_run_asks_a_person_and_another_one_goes_on(start_service, tool_server):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        thread, events = await asked(service)
        assert kinds(events) == run_of(*TEXT, *CALL)
        (interrupt,) = interrupts(events)
        assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", "c1")
        assert interrupt["message"] == "Sammy wants to call note of notes."
        assert interrupt["responseSchema"]["properties"] == {"approved": {"type": "boolean"}}
        assert interrupt["metadata"]["turnwise"]["stage"] == "tool_approval"
        assert await used(tool_server, "note") == 0

        went_on = await thread.run(service, "r2", resume=[resolved(interrupt, {"approved": True})])
        assert kinds(went_on) == run_of("TOOL_CALL_RESULT", *TEXT)
        assert went_on[0]["runId"] == went_on[-1]["runId"] == "r2"
        assert went_on[0]["metadata"]["turnwise"]["exchange_id"] == "r1"
        assert await used(tool_server, "note") == 1
        assert [(one["role"], one.get("content")) for one in thread.messages] == [
            ("user", "Note milk"),
            ("assistant", "I will note it."),
            ("tool", "kept: milk"),
            ("assistant", "I noted milk."),
        ]
        (call,) = thread.messages[1]["toolCalls"]
        assert json.loads(call["function"]["arguments"]) == {"text": "milk"}

        thread.say("Thanks")
        await thread.run(service, "r3")
        assert [one["role"] for one in model.requests[-1].body["messages"]] == [
            *("system", "user", "assistant", "tool", "assistant", "user")
        ]


@pytest.mark.parametrize("no", [{"approved": False}, False, {"choice_id": "deny"}, None], ids=str)
async def test_a_no_is_a_no(start_service, tool_server, no):
    async with (
        scripted(NOTES, says("I did not.")) as model,
        start_service(**sections(model, tool_server)) as service,
    ):
        thread, events = await asked(service)
        entry = resolved(*interrupts(events), no, "cancelled" if no is None else "resolved")
        went_on = await thread.run(service, "r2", resume=[entry])
        assert went_on[-1]["outcome"] == {"type": "success"}
        assert await used(tool_server, "note") == 0
        result = next(event for event in went_on if event["type"] == "TOOL_CALL_RESULT")
        assert result["metadata"] == {"turnwise": {"ok": False}}


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_an_answer_sent_again_is_the_same_run_and_another_one_is_late(start_service, tool_server):
    async with scripted(NOTES, DONE) as model:
        settings = sections(model, tool_server)
        async with start_service(**settings) as service:
            thread, events = await asked(service)
            before = [*thread.messages]
            yes = [resolved(*interrupts(events), {"approved": True})]
            went_on = await thread.run(service, "r2", resume=yes)
            after = [*thread.messages]
            # Another request, another id: the thread is where it was.
            again = Thread("Sammy", thread.thread_id, [*before])
            told = await again.run(service, "r2", resume=yes)
            assert joined(told) == joined(went_on)
            assert again.messages == after
            # The same client again: what it has is told once.
            await thread.run(service, "r2", resume=yes)
            assert thread.messages == after
            no = [resolved(*interrupts(events), {"approved": False})]
            assert await refused(service, "Sammy", again.input("r3", resume=no)) == (409, "not_awaiting", None)
            # The first run, too, is what it was.
            first = Thread("Sammy", thread.thread_id, before[:1])
            assert joined(await first.run(service, "r1")) == joined(events)
        async with start_service(**settings) as service:
            again = Thread("Sammy", thread.thread_id, [*before])
            told = await again.run(service, "r2", resume=yes)
            assert kinds(told) == run_of("TOOL_CALL_RESULT", *TEXT)
            assert again.messages == after
            assert await refused(service, "Sammy", again.input("r3", resume=no)) == (409, "not_awaiting", None)
        assert await used(tool_server, "note") == 1
        assert len(model.requests) == 2


async def test_a_restart_while_a_person_is_waited_for_changes_nothing(start_service, tool_server):
    async with scripted(NOTES, DONE) as model:
        settings = sections(model, tool_server)
        async with start_service(**settings) as service:
            thread, events = await asked(service)
        async with start_service(**settings) as service:
            again = Thread("Sammy", thread.thread_id, thread.messages[:1])
            assert interrupts(await again.run(service, "r1")) == interrupts(events)
            assert again.messages == thread.messages
            went_on = await again.run(service, "r2", resume=[resolved(*interrupts(events), {"approved": True})])
            assert kinds(went_on) == run_of("TOOL_CALL_RESULT", *TEXT)
    assert await used(tool_server, "note") == 1


async def test_a_question_abandoned_for_another_message_is_let_be(start_service, tool_server):
    async with (
        scripted(NOTES, says("Fine.")) as model,
        start_service(**sections(model, tool_server)) as service,
    ):
        thread, events = await asked(service)
        thread.say("Never mind")
        answered = await thread.run(service, "r2", resume=[resolved(*interrupts(events), status="cancelled")])
        assert answered[0]["metadata"]["turnwise"]["exchange_id"] == "r2"
        assert thread.text() == "Fine."
        yes = [resolved(*interrupts(events), {"approved": True})]
        assert (await refused(service, "Sammy", thread.input("r3", resume=yes)))[1] == "not_awaiting"
        # The call that nobody answered is not shown to the model, which would refuse it.
        assert [one["role"] for one in model.requests[-1].body["messages"]] == ["system", "user", "assistant", "user"]


async def test_several_questions_are_several_interrupts(start_service):
    async with start_service(**TELLER) as service:
        thread = Thread("Teller")
        thread.say("two")
        words, review = interrupts(await thread.run(service, "r1"))
        assert (words["reason"], review["reason"]) == ("input_required", "turnwise:action_review")
        assert words["responseSchema"]["required"] == ["text"]
        # Of two, one is answered: the other is asked again.
        (left,) = interrupts(await thread.run(service, "r2", resume=[resolved(words, "To the left")]))
        assert left["message"] == review["message"]
        decisions = [{"type": "approve"}] * 2
        bad = [resolved(left, {"decisions": decisions[:1]})]
        assert await refused(service, "Teller", thread.input("r3", resume=bad)) == (422, "bad_request", "decisions")
        await thread.run(service, "r3", resume=[resolved(left, {"decisions": decisions})])
        first, second = json.loads(thread.text())
        assert first | {"checkpoint_id": ""} == {"text": "To the left", "checkpoint_id": ""} or first == "To the left"
        assert second == {"decisions": decisions}


async def test_both_of_several_questions_are_answered_at_once(start_service):
    async with start_service(**TELLER) as service:
        thread = Thread("Teller")
        thread.say("two")
        words, review = interrupts(await thread.run(service, "r1"))
        await thread.run(
            service, "r2", resume=[resolved(review, {"approved": True}), resolved(words, {"text": "Left"})]
        )
        first, second = json.loads(thread.text())
        assert first["text"] == "Left"
        assert second == {"decisions": [{"type": "approve"}] * len(REVIEW["action_requests"])}


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_run_cut_at_any_event_goes_on_where_it_was(start_service, tool_server):
    """By the position of the last event: nothing is lost, and nothing comes twice."""
    steps = [NOTES, says("I ", "noted ", "milk.")]
    async with scripted(*steps) as model, start_service(**sections(model, tool_server)) as service:
        thread, events = await asked(service)
        entry = [resolved(*interrupts(events), {"approved": True})]
        for run_id, more in (("r1", {}), ("r2", {"resume": entry})):
            body = (Thread("Sammy", thread.thread_id, thread.messages[:1]) if not more else thread).input(
                run_id, **more
            )
            whole = await hear(service, "Sammy", body)
            assert whole[-1].event["type"] == "RUN_FINISHED"
            for cut in range(1, len(whole) + 1):
                rest = await hear(service, "Sammy", body, after=whole[cut - 1].position)
                told = [one.event for one in whole[:cut] + rest]
                assert joined(told) == joined(one.event for one in whole), cut
        assert len(model.requests) == 2


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_running_run_cut_at_any_event_goes_on_where_it_was(start_service):
    tokens = 10

    async def cut_at(number):
        thread = Thread()
        thread.say("Hello")
        body = thread.input(f"r{number}")
        first = await hear(service, "Georges", body, most=number)
        last = first[-1].position if first else None
        ended = bool(first) and first[-1].event["type"] in ENDS
        rest = [] if ended else await hear(service, "Georges", body, after=last)
        whole = [one.event for one in await hear(service, "Georges", body)]
        assert joined(one.event for one in first + rest) == joined(whole)

    async with start_service(f"mock;tokens={tokens};gap=25") as service, asyncio.TaskGroup() as group:
        for number in range(3 + tokens + 6):
            group.create_task(cut_at(number))


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_client_cut_at_any_event_that_asks_again_has_each_text_once(start_service):
    """As the official client does, which knows no position: it sends what it has, and runs again under the same id."""

    async def cut_at(number, uncut):
        thread = Thread("Teller")
        thread.say("tell")
        await thread.run(service, f"r{number}", most=number)
        events = await thread.run(service, f"r{number}")
        assert events[-1]["type"] == "RUN_FINISHED"
        told = [(one["role"], one.get("content")) for one in thread.messages]
        assert sorted(told) == sorted(uncut), number

    async with start_service(**TELLER) as service:
        thread = Thread("Teller")
        thread.say("tell")
        events = await thread.run(service, "r")
        uncut = [(one["role"], one.get("content")) for one in thread.messages]
        for number in range(len(events) + 1):
            await cut_at(number, uncut)


async def test_a_client_cut_in_the_run_behind_an_answer_has_each_part_once(start_service, tool_server):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        thread, events = await asked(service)
        entry = [resolved(*interrupts(events), {"approved": True})]
        before = [*thread.messages]
        whole = await thread.run(service, "r2", resume=entry)
        for number in range(len(whole)):
            again = Thread("Sammy", thread.thread_id, deepcopy(before))
            await again.run(service, "r2", most=number, resume=entry)
            # A client that names its second attempt otherwise is told the same.
            await again.run(service, "r2" if number % 2 else "r3", resume=entry)
            assert again.messages == thread.messages, number
        assert await used(tool_server, "note") == 1


async def test_a_position_of_another_turn_is_refused(service):
    thread = Thread()
    thread.say("Hello")
    body = thread.input("r1")
    await thread.run(service, "r1")
    for position, code in (("00000000-3", "conflict"), ("nonsense", "bad_request"), ("a-1.x", "bad_request")):
        answer = await refused(service, "Georges", body, headers={"Last-Event-ID": position})
        assert answer == ({"conflict": 409}.get(code, 422), code, "Last-Event-ID")


async def test_a_run_goes_on_without_its_client_and_the_same_request_is_its_end(start_service):
    async with held_model("so far ") as model, start_service(ai=model.ai) as service:
        thread = Thread()
        thread.say("Hello")
        await thread.run(service, "r1", most=4)
        assert thread.text() == "so far "
        model.go.set()
        await thread.run(service, "r1")
        assert thread.text() == "so far one two three"
        assert [one["role"] for one in thread.messages] == ["user", "assistant"]


async def test_the_same_request_twice_is_one_run(start_service):
    async with held_model() as model, start_service(ai=model.ai) as service:
        thread = Thread()
        thread.say("Hello")
        body = thread.input("r1")
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(hear(service, "Georges", body)) for _ in range(2)]
            model.go.set()
        one, other = ([heard.event for heard in task.result()] for task in both)
        assert joined(one) == joined(other)
        assert len(await service.history(one[0]["metadata"]["turnwise"]["session_id"])) == 2
        # With another text it is another run.
        thread.messages[0]["content"] = "Goodbye"
        assert await refused(service, "Georges", thread.input("r1")) == (409, "conflict", "runId")


async def test_after_a_restart_the_same_request_tells_the_run_from_history(start_service):
    async with start_service() as service:
        thread = Thread()
        thread.say("Hello")
        await thread.run(service, "r1")
        after = [*thread.messages]
    async with start_service("mock;status=500") as service:
        events = await thread.run(service, "r1")
        assert thread.messages == after
        assert custom(events, "ledger")[0]["durable"] == "db"
        assert events[-1]["usage"][0]["model"] == "mock"


async def test_after_a_kill_the_run_runs_again_and_its_text_is_there_once(start_process):
    async with start_process("mock;tokens=9;stall=3") as service:
        thread = Thread()
        thread.say("Hello")
        begun = await hear(service, "Georges", thread.input("r1"), most=4)
        thread.apply(one.event for one in begun)
        assert thread.text() != ""
        await service.ask_on_disk("r1")
        await service.process.until(service.process.kill)
    async with start_process("mock;tokens=2") as service:
        position = {"Last-Event-ID": begun[-1].position}
        assert (await refused(service, "Georges", thread.input("r1"), headers=position))[1] == "conflict"
        events = await thread.run(service, "r1")
        assert [one["type"] for one in events[:3]] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED"]
        assert [one["role"] for one in thread.messages] == ["user", "assistant"]
        assert len(thread.text().split()) == 2


async def test_another_users_run_is_another_run(start_service):
    async with start_service(security=SECURITY) as service:
        thread = Thread()
        thread.say("Hello")
        body = thread.input("r1")
        (ann,) = [(await hear(service, "Georges", body, headers=headers_of("ann")))[0].event]
        heard = await hear(service, "Georges", body, headers=headers_of("bob"))
        assert heard[0].event["metadata"] != ann["metadata"]
        position = heard[-1].position
        assert await refused(service, "Georges", body, headers={**headers_of("ann"), "Last-Event-ID": position}) == (
            409,
            "conflict",
            "Last-Event-ID",
        )
        async with service.http.post("/agui/Georges", json=body, headers={"Authorization": ""}) as response:
            assert response.status == 401
        for user in ("ann", "bob"):
            async with service.http.get("/agentic/v1/chatbot/sessions", headers=headers_of(user)) as response:
                assert len(await response.json()) == 1


async def test_another_users_answer_runs_nothing(start_service, tool_server):
    async with (
        scripted(NOTES, DONE) as model,
        start_service(security=SECURITY, **sections(model, tool_server)) as service,
    ):
        ann, bob = headers_of("ann"), headers_of("bob")
        thread = Thread("Sammy")
        thread.say("Note milk")
        heard = await hear(service, "Sammy", thread.input("r1"), headers=ann)
        thread.apply(one.event for one in heard)
        entry = [resolved(*interrupts([one.event for one in heard]), {"approved": True})]
        body = thread.input("r2", resume=entry)
        assert await refused(service, "Sammy", body, headers=bob) == (403, "session_not_found", None)
        assert await used(tool_server, "note") == 0
        assert (await hear(service, "Sammy", body, headers=ann))[-1].event["outcome"] == {"type": "success"}


async def test_what_is_refused_before_the_run_is_an_http_error_and_what_fails_in_it_an_event(start_service):
    async with (
        scripted(status(500)) as model,
        start_service(
            "scripted",
            ai={"default_chat_model": {"settings": {"base_url": model.base_url}}},
            limits={"per_user": {"asks_per_min": 1, "burst": 1}},
        ) as service,
    ):
        thread = Thread()
        thread.say("Hello")
        events = await thread.run(service, "r1")
        assert kinds(events) == ["RUN_STARTED", "STEP_STARTED", "RUN_ERROR"]
        assert events[-1]["code"] == "llm_unavailable"
        assert events[-1]["message"] == "The model is unavailable. Try again."
        assert events[-1]["metadata"]["turnwise"]["retryable"] is True
        assert await refused(service, "Georges", Thread(messages=thread.messages).input("r2")) == (
            429,
            "rate_limited",
            None,
        )
        assert await refused(service, "Nobody", thread.input("r3")) == (404, "agent_not_found", None)


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_failure_in_mid_text_keeps_what_was_said(start_service):
    async with start_service("mock;tokens=9;garbage=3") as service:
        thread = Thread()
        thread.say("Hello")
        events = await thread.run(service, "r1")
        assert events[-1]["type"] == "RUN_ERROR"
        assert events[-1]["code"] == "llm_protocol"
        said = [*thread.messages]
        again = Thread("Georges", thread.thread_id, thread.messages[:1])
        assert joined(await again.run(service, "r1")) == joined(events)
        assert again.messages == said


@pytest.mark.parametrize("run_id", ["r1", "chat/7/r1"])
async def test_a_run_is_stopped_by_its_exchange(start_service, mock_llm, run_id):
    async with start_service(SLOW) as service:
        thread = Thread()
        thread.say("Hello")
        stop = f"/agui/Georges/runs/{run_id}"
        async with asyncio.TaskGroup() as group:
            running = group.create_task(thread.run(service, run_id))
            await until_open(service, mock_llm, 1)
            async with service.http.delete("/agui/Georges/runs/r2") as response:
                assert response.status == 404
            async with service.http.delete(stop) as response:
                assert response.status == 204
        events = running.result()
        assert kinds(events) == run_of()
        assert events[-1]["outcome"] == {"type": "cancelled"}
        async with service.http.delete(stop) as response:
            assert response.status == 404


async def test_a_client_that_leaves_may_have_its_run_stopped(start_service, mock_llm):
    async with start_service(SLOW) as service:
        thread = Thread(more={"forwardedProps": {"turnwise": {"on_disconnect": "cancel"}, "theirs": 1}})
        thread.say("Hello")
        events = over_agui(service, "Georges", thread.input("r1"))
        assert (await anext(events)).event["type"] == "RUN_STARTED"
        await until_open(service, mock_llm, 1)
        await events.aclose()
        await until_open(service, mock_llm, 0)
        told = await thread.run(service, "r1")
        assert told[-1]["outcome"] == {"type": "cancelled"}


async def test_a_new_run_of_a_thread_takes_the_place_of_the_one_before(start_service, mock_llm):
    async with start_service(SLOW) as service:
        thread = Thread()
        thread.say("Hello")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(thread.run(service, "r1"))
            await until_open(service, mock_llm, 1)
            other = Thread("Georges", thread.thread_id)
            other.say("Something else")
            rejects = {"forwardedProps": {"turnwise": {"if_busy": "reject"}}}
            assert (await refused(service, "Georges", other.input("r2", **rejects)))[:2] == (409, "session_busy")
            second = group.create_task(other.run(service, "r3"))
            assert (await first)[-1]["outcome"] == {"type": "cancelled"}
            await until_open(service, mock_llm, 1)
            async with service.http.delete("/agui/Georges/runs/r3") as response:
                assert response.status == 204
            await second


CITY = {"name": "city", "description": "Where the user is", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_client_s_tool_is_called_by_the_client(start_service):
    async with scripted(wants(("call_0", "city", "{}"), text="Let me look."), says("You are in Oslo.")) as model:
        agents = [
            {"name": "Georges", "class_path": "agentic_backend.agent.plain", "client_tools": True},
            {"name": "Other", "class_path": "agentic_backend.agent.plain"},
        ]
        ai = {"default_chat_model": {"settings": {"base_url": model.base_url}}, "agents": agents}
        async with start_service("scripted", ai=ai) as service:
            thread = Thread(tools=[CITY])
            thread.say("Where am I?")
            events = await thread.run(service, "r1")
            assert kinds(events) == run_of(*TEXT, *CALL)
            assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["call_0"]}
            assert model.requests[0].body["tools"] == [{"type": "function", "function": CITY}]
            assert [one["role"] for one in thread.messages] == ["user", "assistant"]
            told = Thread("Georges", thread.thread_id, thread.messages[:1], [CITY])
            assert joined(await told.run(service, "r1")) == joined(events)

            thread.messages.append({"id": "x", "role": "tool", "toolCallId": "call_0", "content": "Oslo"})
            await thread.run(service, "r2")
            assert thread.text() == "You are in Oslo."
            sent = model.requests[1].body["messages"]
            assert [one["role"] for one in sent] == ["system", "user", "assistant", "tool"]
            assert sent[2]["tool_calls"][0]["function"] == {"name": "city", "arguments": "{}"}

            other = Thread("Other", tools=[CITY])
            other.say("Where am I?")
            await other.run(service, "r3")
            assert "tools" not in model.requests[2].body


FAULTS = [
    ({"runId": None}, "runId"),
    ({"runId": "x" * 129}, "runId"),
    ({"threadId": ""}, "threadId"),
    ({"messages": []}, "messages"),
    ({"messages": [{"id": "a", "role": "user"}]}, "messages[0].content"),
    ({"messages": [{"id": "a", "role": "assistant", "content": "I"}]}, "messages[0].role"),
    ({"messages": [{"id": "a", "role": "tool", "content": "x"}]}, "messages[0].toolCallId"),
    ({"messages": [{"id": "a", "role": "tool", "content": "x", "toolCallId": "c"}]}, "messages[0].toolCallId"),
    ({"messages": [{"id": "a", "role": "user", "content": "\x00"}]}, "messages[0].content"),
    ({"tools": [{"name": ""}]}, "tools[0].name"),
    ({"context": [{"description": "x"}]}, "context[0].value"),
    ({"forwardedProps": {"turnwise": {"if_busy": "wait"}}}, "forwardedProps.turnwise.if_busy"),
    ({"forwardedProps": {"turnwise": 1}}, "forwardedProps.turnwise"),
    ({"resume": [{"interruptId": "made up", "status": "resolved"}]}, "resume[0].interruptId"),
    ({"resume": [{"interruptId": "made up", "status": "done"}]}, "resume[0].status"),
]


async def test_faults_name_their_field(service):
    thread = Thread()
    thread.say("Hello")
    for wrong, field in FAULTS:
        assert await refused(service, "Georges", thread.input("r1", **wrong)) == (422, "bad_request", field), wrong
    long = [{"id": "a", "role": "user", "content": "x" * 32_001}]
    assert await refused(service, "Georges", thread.input("r1", messages=long)) == (
        422,
        "message_too_long",
        "messages[0].content",
    )
    assert await service.get("/chatbot/sessions") == []


@pytest.mark.one_instance("what has just been opened is told to other instances a moment later")
async def test_what_may_open_no_stream_leaves_nothing(start_service):
    async with start_service(limits={"per_user": {"sockets": 1}}) as service:
        thread = Thread()
        thread.say("Hello")
        body = thread.input("r1")
        foreign = await refused(service, "Georges", body, headers={"Origin": "https://elsewhere.example"})
        assert foreign[:2] == (403, "forbidden")
        async with service.native(), service.http.post("/agui/Georges", json=body) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "2")
        assert await service.get("/chatbot/sessions") == []


async def test_an_authorized_page_may_run_agents_from_where_it_was(start_service):
    page = {"Origin": "https://page.example"}
    async with start_service(security={"authorized_origins": [page["Origin"]]}) as service:
        thread = Thread()
        thread.say("Hello")
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "last-event-id"}
        async with service.http.options("/agui/Georges", headers={**page, **wanted}) as response:
            assert response.status == 200
            assert "last-event-id" in response.headers["Access-Control-Allow-Headers"].lower()
        async with service.http.post("/agui/Georges", json=thread.input("r1"), headers=page) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, page["Origin"])


async def test_the_door_is_there_where_it_is_switched_on(start_service):
    async with (
        start_service(doors={"agui": False}) as service,
        service.http.post("/agui/Georges", json={}) as response,
    ):
        assert response.status == 404
