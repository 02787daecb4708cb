"""An agent that asks a person: the run waits in Postgres, over a restart, and goes on once, for its owner alone."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.agentic_backend.llm.scripted import scripted
from tests.support.agentic import start_process
from tests.support.following import over_stream, resume_frame
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, hear, hear_until, say
from tests.support.telling_agent import REVIEW, telling
from tests.support.tool_model import says, wants
from tests.support.tool_server import counts, tool_server

__all__ = ["start_process", "tool_server"]

NOTES = wants(("c1", "note", '{"text": "milk"}'), text="I will note it.")
DONE = says("I noted ", "milk.")
ENDS = ("final", "error", "cancelled", "awaiting_human")
ALLOW = {"choice_id": "allow"}


def sections(model, tools, **agent):
    """A configuration with Sammy on a scripted model and a tool server."""
    sammy = {
        "name": "Sammy",
        "class_path": "agentic_backend.agent.tools",
        "tuning": {"mcp_servers": [{"id": "notes"}]},
        **agent,
    }
    return {
        "ai": {
            "default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}},
            "agents": [sammy, {"name": "Georges", "class_path": "agentic_backend.agent.plain"}],
        },
        "mcp": {"servers": [{"id": "notes", "url": tools.url}]},
    }


def ask(session_id, exchange_id="e1", message="Note milk", **more):
    head = {"type": "ask", "session_id": session_id, "agent_id": "Sammy", "message": message}
    return {**head, "client_exchange_id": exchange_id, **more}


def answer(session_id, payload, exchange_id="e1", **more):
    head = {"type": "human_resume", "session_id": session_id, "exchange_id": exchange_id, "agent_id": "Sammy"}
    return {**head, "payload": payload, **more}


async def asked(service, session_id, **more):
    async with service.native() as socket:
        await say(socket, **ask(session_id, **more))
        return await hear_until(socket, "awaiting_human")


async def answered(service, session_id, payload=ALLOW, **more):
    """The frames of the run that goes on, or what was said against it."""
    async with service.native(more.pop("token", "local")) as socket:
        await say(socket, **answer(session_id, payload, **more))
        return await hear_until(socket, *ENDS)


async def streamed(service, frame, **how):
    """The frames of an event stream that is asked with this frame."""
    return [json.loads(text) async for text in over_stream(service, frame, **how)]


async def refused_stream(service, frame, **headers):
    """The HTTP status and the code that stand against an event stream."""
    async with service.http.post(f"{BASE}/chatbot/query/stream", json=frame, headers=headers) as response:
        return response.status, (await response.json())["detail"]["code"]


def kinds(messages):
    return [(message["rank"], message["role"], message["channel"]) for message in messages]


def checkpoints(database, session_id):
    """How many rows each of LangGraph's tables has of the session."""
    with psycopg.connect(database.dsn) as connection:
        return [
            connection.execute(f"SELECT count(*) FROM {table} WHERE thread_id = %s", (session_id,)).fetchone()[0]  # noqa: S608 - ours
            for table in ("checkpoints", "checkpoint_writes")
        ]


async def used(tools, name):
    return (await counts(tools))["counts"].get(name, 0)


@pytest.mark.one_instance("counts what one process asks its tools")
async def test_a_run_waits_for_a_person_and_goes_on(start_service, tool_server, database):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy", title=None)
        waiting = await asked(service, session_id)
        assert [frame["type"] for frame in waiting] == [
            "accepted",
            "message",
            "delta",
            "message",
            "message",
            "session",
            "awaiting_human",
        ]
        payload = waiting[-1]["payload"]
        assert payload["metadata"] == {
            "id": "c1",
            "name": "note",
            "arguments": {"text": "milk"},
            "server": "notes",
        }
        assert [choice["id"] for choice in payload["choices"]] == ["allow", "deny"]
        assert await used(tool_server, "note") == 0
        before = await service.history(session_id)
        assert kinds(before) == [
            (0, "user", "final"),
            (1, "assistant", "thought"),
            (2, "assistant", "tool_call"),
            (3, "assistant", "final"),
        ]
        assert before[3]["metadata"]["extras"]["status"] == "awaiting_human"
        assert before[3]["metadata"]["extras"]["awaiting"] == {"payload": payload, "seq": waiting[-1]["seq"]}

        went_on = await answered(service, session_id)
        assert texts(went_on) == [
            ("accepted", ""),
            ("message", ""),
            ("message", ""),
            ("delta", "I noted milk."),
            ("final", ""),
        ]
        goes_on_after(waiting, went_on)
        after = await service.history(session_id)
        assert kinds(after) == [
            *kinds(before)[:3],
            (3, "user", "observation"),
            (4, "tool", "tool_result"),
            (5, "assistant", "final"),
        ]
        assert after[:3] == before[:3]
        assert after[3]["parts"] == [{"type": "text", "text": "Allow"}]
        decision = after[3]["metadata"]["extras"]["decision"]
        assert decision == {"by": "admin", "at": decision["at"], "answer": ALLOW}
        assert before[3]["timestamp"] < decision["at"] <= after[3]["timestamp"] < after[4]["timestamp"]
        assert went_on[1]["message"] == after[3]
        assert after[4]["parts"][0] | {"latency_ms": 0} == {
            "type": "tool_result",
            "call_id": "c1",
            "ok": True,
            "latency_ms": 0,
            "content": "kept: milk",
        }
        assert went_on[-1]["messages"] == after
        assert after[5]["parts"] == [{"type": "text", "text": "I noted milk."}]
        assert await used(tool_server, "note") == 1
        assert await used(tool_server, "tools/list") == 1
        assert (await service.get("/chatbot/sessions"))[0]["next_rank"] == 6
        assert checkpoints(database, session_id) == [0, 0]


async def test_a_restart_while_a_person_is_waited_for_changes_nothing(start_process, tool_server, database):
    async with scripted(NOTES, DONE) as model:
        settings = {**sections(model, tool_server), "app": {"metrics_enabled": True}}
        async with start_process("scripted", **settings) as service:
            session_id = await service.create_session(agent_id="Sammy")
            waiting = await asked(service, session_id)
            phases = re.findall(
                r'app_phase_latency_seconds_count\{phase="(\w+)",status="(\w+)"\}', await service.metrics()
            )
        assert checkpoints(database, session_id)[0] == 1
        # To wait for a person is no failure.
        assert ("stream_agent_response", "ok") in phases
        assert {status for _, status in phases} == {"ok"}
        async with start_process("scripted", **settings) as service:
            told = await asked(service, session_id)
            assert told[-1]["payload"] == waiting[-1]["payload"]
            went_on = await answered(service, session_id)
            assert went_on[-1]["type"] == "final"
            goes_on_after(waiting, went_on)
            late = await answered(service, session_id)
            assert late[-1]["code"] == "not_awaiting"
            history = await service.history(session_id)
        async with start_process("scripted", **settings) as service:
            assert await service.history(session_id) == history
            assert (await answered(service, session_id))[-1]["code"] == "not_awaiting"
        assert len(model.requests) == 2
    assert [message["rank"] for message in history] == [0, 1, 2, 3, 4, 5]
    assert await used(tool_server, "note") == 1


async def test_a_denied_call_does_not_run(start_service, tool_server):
    async with (
        scripted(NOTES, says("I did not.")) as model,
        start_service(**sections(model, tool_server)) as service,
    ):
        session_id = await service.create_session(agent_id="Sammy")
        await asked(service, session_id)
        final = (await answered(service, session_id, {"choice_id": "deny"}))[-1]
        result = final["messages"][-2]["parts"][0]
        assert (result["ok"], result["latency_ms"]) == (False, None)
        assert final["messages"][-1]["parts"][0]["text"] == "I did not."
        assert await used(tool_server, "note") == 0


async def test_what_is_not_a_clear_yes_is_a_no(start_service, tool_server):
    unclear = ["allow", {}, {"choice_id": ["allow"]}, {"choice_id": "Allow"}, {"allow": True}]
    steps = [NOTES, says("I did not.")] * len(unclear)
    async with scripted(*steps) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        for number, payload in enumerate(unclear):
            await asked(service, session_id, exchange_id=f"e{number}")
            assert (await answered(service, session_id, payload, exchange_id=f"e{number}"))[-1]["type"] == "final"
        assert await used(tool_server, "note") == 0


async def test_of_many_answers_at_once_one_is_taken(start_service, tool_server):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        await asked(service, session_id)
        ends = [frames[-1] for frames in await asyncio.gather(*(answered(service, session_id) for _ in range(8)))]
        assert sorted(end["type"] for end in ends) == ["error"] * 7 + ["final"]
        assert {end["code"] for end in ends if end["type"] == "error"} == {"not_awaiting"}
        assert len(model.requests) == 2
        assert await used(tool_server, "note") == 1


async def test_a_forged_foreign_or_late_answer_runs_nothing(start_service, tool_server, database):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        other = await service.create_session(agent_id="Sammy")
        payload = (await asked(service, session_id))[-1]["payload"]

        async def code(session, said=ALLOW, **more):
            return (await answered(service, session, said, **more))[-1]["code"]

        assert await code(session_id, exchange_id="e2") == "exchange_not_found"
        assert await code(other) == "exchange_not_found"
        assert await code("nowhere0000", exchange_id="e9") == "session_not_found"
        assert await code(session_id, agent_id="Georges") == "not_awaiting"
        assert await code(session_id, agent_id="Nobody") == "agent_not_found"
        assert await code(session_id, {**ALLOW, "checkpoint_id": "forged"}) == "not_awaiting"
        assert await used(tool_server, "note") == 0
        assert len(model.requests) == 1
        right = {**ALLOW, "checkpoint_id": payload["checkpoint_id"]}
        assert (await answered(service, session_id, right))[-1]["type"] == "final"
        assert await code(session_id, right) == "not_awaiting"
        assert await used(tool_server, "note") == 1


async def test_who_asks_something_else_has_let_the_question_be(start_service, tool_server):
    async with (
        scripted(NOTES, says("Fine.")) as model,
        start_service(**sections(model, tool_server)) as service,
    ):
        session_id = await service.create_session(agent_id="Sammy")
        await asked(service, session_id)
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e2", "Never mind"))
            await hear_until(socket, "final")
        assert (await answered(service, session_id))[-1]["code"] == "not_awaiting"
        assert [message["rank"] for message in await service.history(session_id)] == list(range(6))
        assert await used(tool_server, "note") == 0


async def test_the_compatible_protocol_asks_and_goes_on(start_service, tool_server):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        async with service.compatible() as socket:
            await say(socket, **ask(session_id))
            waiting = await hear_until(socket, "awaiting_human")
            assert [frame["type"] for frame in waiting] == ["stream", "stream", "stream", "awaiting_human"]
            await say(socket, **answer(session_id, ALLOW))
            frames = await hear_until(socket, "final")
            assert [frame["type"] for frame in frames] == ["stream", "stream", "stream", "final"]
            assert kinds([frames[0]["message"]]) == [(3, "user", "observation")]
            assert frames[-1]["messages"] == await service.history(session_id)
            await say(socket, **answer(session_id, ALLOW))
            refused = await hear(socket)
            assert (refused["type"], refused["code"]) == ("error", "not_awaiting")
            await socket.wait_closed()
            assert socket.close_code == 1011


async def test_a_deleted_session_leaves_no_checkpoint(start_service, tool_server, database):
    async with scripted(NOTES) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        await asked(service, session_id)
        assert checkpoints(database, session_id)[0] == 1
        async with service.http.delete(f"/agentic/v1/chatbot/session/{session_id}") as response:
            assert response.status == 200
        assert checkpoints(database, session_id) == [0, 0]
        assert (await answered(service, session_id))[-1]["code"] == "session_not_found"


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_resuming_the_events_of_an_exchange_goes_over_both_runs(start_service, tool_server):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        frames = await asked(service, session_id) + await answered(service, session_id)
        async with service.native() as socket:
            resume = {"type": "resume", "session_id": session_id, "exchange_id": "e1"}
            await say(socket, **resume, after_seq=0)
            again = [await hear(socket)]
            while again[-1]["type"] != "final":
                again.append(await hear(socket))
            assert texts(again) == texts(frames)
            await say(socket, **resume, after_seq=frames[-2]["seq"])
            assert await hear(socket) == frames[-1]


async def test_a_person_answers_over_an_event_stream_once(start_service, tool_server):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        waiting = await streamed(service, ask(session_id))
        assert waiting[-1]["type"] == "awaiting_human"
        forged = answer(session_id, {**ALLOW, "checkpoint_id": "forged"})
        assert await refused_stream(service, forged) == (409, "not_awaiting")
        assert await refused_stream(service, answer(session_id, ALLOW, "e2")) == (404, "exchange_not_found")
        assert await used(tool_server, "note") == 0
        went_on = await streamed(service, answer(session_id, ALLOW))
        assert texts(went_on) == [
            ("accepted", ""),
            ("message", ""),
            ("message", ""),
            ("delta", "I noted milk."),
            ("final", ""),
        ]
        goes_on_after(waiting, went_on)
        # What a person said is taken once; a stream that broke off goes on by `resume`.
        assert await refused_stream(service, answer(session_id, ALLOW)) == (409, "not_awaiting")
        cut = went_on[0]["seq"]
        assert texts(await streamed(service, resume_frame(session_id), last_event_id=cut)) == texts(went_on[1:])
        assert await streamed(service, resume_frame(session_id), last_event_id=went_on[-1]["seq"]) == []
        assert texts(await streamed(service, resume_frame(session_id))) == texts(waiting + went_on)
        assert await used(tool_server, "note") == 1
        assert len(model.requests) == 2


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_a_stream_of_an_answer_may_begin_with_what_was_missed_of_the_question(start_service, tool_server):
    async with scripted(NOTES, DONE) as model, start_service(**sections(model, tool_server)) as service:
        session_id = await service.create_session(agent_id="Sammy")
        waiting = await asked(service, session_id)
        heard = await streamed(service, answer(session_id, ALLOW), last_event_id=waiting[-2]["seq"])
        assert heard[0] == waiting[-1]
        assert [frame["type"] for frame in heard[1:]][-1] == "final"


async def test_a_person_answers_over_a_stream_after_a_restart(start_service, tool_server):
    async with scripted(NOTES, DONE) as model:
        settings = sections(model, tool_server)
        async with start_service(**settings) as service:
            session_id = await service.create_session(agent_id="Sammy")
            waiting = await asked(service, session_id)
        async with start_service(**settings) as service:
            went_on = await streamed(service, answer(session_id, ALLOW), last_event_id=waiting[-1]["seq"])
            assert went_on[-1]["type"] == "final"
            goes_on_after(waiting, went_on)
    assert await used(tool_server, "note") == 1


async def test_another_users_answer_runs_nothing(start_service, tool_server):
    """With the ids and the question's own checkpoint in hand: session_not_found, as for a session that is not there."""
    async with (
        scripted(NOTES, DONE) as model,
        start_service(security=SECURITY, **sections(model, tool_server)) as service,
    ):
        ann, bob = headers_of("ann"), headers_of("bob")
        body = {"agent_id": "Sammy", "title": "Ann's"}
        async with service.http.post(f"{BASE}/chatbot/session", json=body, headers=ann) as response:
            session_id = (await response.json())["id"]
        async with service.native(token_of("ann")) as socket:
            await say(socket, **ask(session_id))
            payload = (await hear_until(socket, "awaiting_human"))[-1]["payload"]
        allowed = {**ALLOW, "checkpoint_id": payload["checkpoint_id"]}
        foreign = await answered(service, session_id, allowed, token=token_of("bob"))
        absent = await answered(service, "AAAAAAAAAAA", allowed, token=token_of("bob"))
        assert [frame["type"] for frame in foreign] == ["error"]
        assert foreign[0]["code"] == absent[0]["code"] == "session_not_found"
        async with service.compatible(token=token_of("bob")) as socket:
            await say(socket, **answer(session_id, allowed))
            assert (await hear(socket))["code"] == "session_not_found"
            await socket.wait_closed()
            assert socket.close_code == 1011
        frame = answer(session_id, allowed)
        assert await refused_stream(service, frame, **bob) == (403, "session_not_found")
        # What does not run leaves the question where it is, and to its owner.
        assert len(model.requests) == 1
        assert await used(tool_server, "note") == 0
        own = await answered(service, session_id, allowed, token=token_of("ann"))
        assert own[-1]["type"] == "final"
        assert await used(tool_server, "note") == 1


TELLER = {"ai": {"agents": [telling()]}}


async def teller_asked(service, message, exchange_id="e1"):
    """A session in which the agent of many questions waits, and what it asks."""
    session_id = await service.create_session(agent_id="Teller")
    frames = await asked(service, session_id, message=message, exchange_id=exchange_id, agent_id="Teller")
    return session_id, frames[-1]["payload"]


async def teller_answered(service, session_id, payload, exchange_id="e1"):
    return (await answered(service, session_id, payload, exchange_id=exchange_id, agent_id="Teller"))[-1]


def answer_of(final):
    return json.loads(final["messages"][-1]["parts"][0]["text"])


async def test_a_review_of_tool_calls_is_asked_and_its_decisions_reach_the_graph(start_service):
    async with start_service(**TELLER) as service:
        session_id, payload = await teller_asked(service, "review")
        assert payload["action_requests"] == REVIEW["action_requests"]
        assert payload["review_configs"] == REVIEW["review_configs"]
        assert [choice["id"] for choice in payload["choices"]] == ["approve", "reject"]
        edit = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "bob"}}}
        decisions = [edit, {"type": "reject", "message": "Keep it."}]
        final = await teller_answered(service, session_id, {"decisions": decisions})
        assert answer_of(final) == [{"decisions": decisions}, None]
        decided = final["messages"][1]
        assert decided["parts"] == [{"type": "text", "text": "edit\nreject"}]
        assert decided["metadata"]["extras"]["decision"]["answer"] == {"decisions": decisions}


BAD_DECISIONS = [
    ({"choice_id": "allow"}, "choice_id"),
    ("approve", "choice_id"),
    ({"decisions": [{"type": "approve"}]}, "decisions"),
    ({"decisions": [{"type": "approve"}, {"type": "edit"}]}, "decisions[1].type"),
    ({"decisions": [{"type": "edit", "edited_action": {"name": "send"}}, {"type": "reject"}]},
     "decisions[0].edited_action.args"),
]  # fmt: skip


async def test_a_bad_decision_is_refused_by_its_field_and_the_run_still_waits(start_service):
    async with start_service(**TELLER) as service:
        session_id, _ = await teller_asked(service, "review")
        before = await service.history(session_id)
        for bad, field in BAD_DECISIONS:
            refused = await teller_answered(service, session_id, bad)
            assert (refused["code"], refused["field"]) == ("bad_request", field)
            assert "seq" not in refused
        frame = answer(session_id, {"decisions": []}, agent_id="Teller")
        async with service.http.post(f"{BASE}/chatbot/query/stream", json=frame) as response:
            assert response.status == 422
            detail = (await response.json())["detail"]
            assert (detail["code"], detail["field"]) == ("bad_request", "decisions")
        async with service.compatible() as socket:
            await say(socket, **frame)
            assert (await hear(socket))["code"] == "bad_request"
            await socket.wait_closed()
        assert await service.history(session_id) == before
    async with start_service(**TELLER) as service:
        refused = await teller_answered(service, session_id, {"decisions": []})
        assert (refused["code"], refused["field"]) == ("bad_request", "decisions")
        final = await teller_answered(service, session_id, {"choice_id": "reject", "answer": "Keep it."})
        assert answer_of(final) == [{"decisions": [{"type": "reject", "message": "Keep it."}] * 2}, None]
        assert final["messages"][1]["parts"] == [{"type": "text", "text": "Reject\nKeep it."}]


async def test_any_value_of_a_graph_is_asked_and_answered(start_service):
    async with start_service(**TELLER) as service:
        session_id, payload = await teller_asked(service, "value")
        assert (payload["stage"], payload["free_text"]) == ("value", True)
        assert payload["metadata"] == {"value": ["which", 1]}
        final = await teller_answered(service, session_id, {"text": "this", "checkpoint_id": payload["checkpoint_id"]})
        assert answer_of(final) == ["this", None]


async def test_several_questions_are_answered_one_after_the_other_or_at_once_also_after_a_restart(start_service):
    async with start_service(**TELLER) as service:
        session_id, payload = await teller_asked(service, "two")
        names = {("review" if "action_requests" in one else "words"): one["id"] for one in payload["questions"]}
        assert set(names) == {"words", "review"}
        unknown = await teller_answered(service, session_id, {"answers": {"other": "x"}})
        assert (unknown["code"], unknown["field"]) == ("bad_request", "answers")
        bad = await teller_answered(service, session_id, {"answers": {names["review"]: {"choice_id": "edit"}}})
        assert bad["field"] == f"answers.{names['review']}.choice_id"
    async with start_service(**TELLER) as service:
        rest = await teller_answered(service, session_id, {"answers": {names["review"]: {"choice_id": "approve"}}})
        assert rest["type"] == "awaiting_human"
        assert rest["payload"]["interrupt_id"] == names["words"]
        assert "questions" not in rest["payload"]
        # An answer to the question before is one to another question.
        late = await teller_answered(service, session_id, {"text": "x", "checkpoint_id": payload["checkpoint_id"]})
        assert late["code"] == "not_awaiting"
        final = await teller_answered(service, session_id, {"text": "left"})
        approved = {"decisions": [{"type": "approve"}] * 2}
        assert answer_of(final) == [{"text": "left"}, approved]
        assert kinds(final["messages"]) == [
            (0, "user", "final"),
            (1, "user", "observation"),
            (2, "user", "observation"),
            (3, "assistant", "final"),
        ]
        assert [message["parts"][0]["text"] for message in final["messages"][1:3]] == ["Approve", "left"]

        session_id, payload = await teller_asked(service, "two", "e2")
        answers = {one["id"]: {"choice_id": "approve"} for one in payload["questions"]}
        final = await teller_answered(service, session_id, {"answers": answers}, "e2")
        assert answer_of(final) == [{"choice_id": "approve"}, approved]


def goes_on_after(waiting, went_on):
    """The numbers of the second run go on where those of the first ended."""
    numbers = [frame["seq"] for frame in went_on]
    assert numbers[0] == waiting[-1]["seq"] + 1
    assert numbers == sorted(set(numbers))


def texts(frames):
    """What the frames say, however their text was cut."""
    said = []
    for frame in frames:
        if frame["type"] == "delta" and said and said[-1][0] == "delta":
            said[-1] = ("delta", said[-1][1] + frame["text"])
        else:
            said.append((frame["type"], frame.get("text", "")))
    return said


@asynccontextmanager
async def cut_off(start_process, settings, session_id, tools):
    """A service that was killed while the allowed tool ran."""
    async with start_process("scripted", **settings) as service:
        socket = await service.native()
        await say(socket, **answer(session_id, ALLOW))
        while not await used(tools, "stall"):  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)
        yield service


async def test_what_a_crash_cut_off_after_a_yes_never_runs_again(start_process, tool_server):
    stalls = wants(("c1", "stall", "{}"))
    async with scripted(stalls, DONE) as model:
        settings = sections(model, tool_server)
        settings["mcp"]["servers"][0]["tools_to_approve"] = ["stall"]
        async with start_process("scripted", **settings) as service:
            session_id = await service.create_session(agent_id="Sammy")
            await asked(service, session_id)
        async with cut_off(start_process, settings, session_id, tool_server) as service:
            await service.ask_on_disk("e1")
            service.process.kill()
        async with start_process("scripted", **settings) as service:
            assert (await answered(service, session_id))[-1]["code"] == "not_awaiting"
            async with service.native() as socket:
                await say(socket, **ask(session_id))
                heard = await hear(socket)
                while heard["type"] not in ENDS:
                    heard = await hear(socket)
                assert heard["type"] == "cancelled"
            history = await service.history(session_id)
        assert kinds(history) == [
            (0, "user", "final"),
            (1, "assistant", "tool_call"),
            (2, "user", "observation"),
            (3, "assistant", "final"),
        ]
        # Who allowed what was stored before it was done.
        assert history[2]["metadata"]["extras"]["decision"]["answer"] == ALLOW
        assert history[3]["metadata"]["extras"] == {"status": "interrupted"}
        assert await used(tool_server, "stall") == 1
        assert len(model.requests) == 1
