"""Reasoning and what an agent says beside its answer: streamed by every door, resumed, and stored only where asked."""

import asyncio
import json
import logging

import psycopg
import pytest

from tests.support.following import (
    after,
    ask_frame,
    heard,
    last_seq,
    over_socket,
    over_stream,
    resume_frame,
    transcript,
)
from tests.support.service import hear_until, say
from tests.support.telling_agent import ANSWER, EVENTS, SECRET, telling

AI = {"agents": [telling()]}
KEEP = {"history": {"keep_thoughts": True}}
STRETCHES = [f"I look for {SECRET}.", "Now I know.", "Is it?"]


def teller(session_id, exchange_id="e1", message="Tell"):
    return ask_frame(session_id, exchange_id, message, agent_id="Teller")


def told(frames):
    """Type and content of each frame, reasoning and text joined."""
    said = []
    for frame in (json.loads(text) for text in transcript(frames)):
        if frame["type"] == "message":
            message = frame["message"]
            said.append((message["channel"], "".join(part["text"] for part in message["parts"])))
        else:
            said.append((frame["type"], frame.get("text", frame.get("data"))))
    return said


def kinds(messages):
    return [(message["rank"], message["role"], message["channel"]) for message in messages]


async def test_reasoning_and_custom_events_are_streamed_in_their_place(start_service):
    async with start_service(ai=AI) as service:
        session_id = await service.create_session(agent_id="Teller")
        frames = await heard(over_socket(service, teller(session_id)))
        assert told(frames) == [
            ("accepted", None),
            ("final", "Tell"),
            ("thought", STRETCHES[0]),
            ("custom", {"looking": [1, None, {"for": SECRET}]}),
            ("system_note", "Looked."),
            ("thought", STRETCHES[1]),
            ("custom", SECRET),
            ("delta", "A turn is "),
            ("thought", STRETCHES[2]),
            ("delta", "a turn."),
            ("final", None),
        ]
        thought = json.loads(frames[2])
        assert set(thought) == {"type", "session_id", "exchange_id", "seq", "text"}
        final = json.loads(frames[-1])
        extras = final["messages"][-1]["metadata"]["extras"]
        assert extras["thinking_ms"] > 0
        assert extras["deltas"] == 4
        assert "late_thoughts" not in extras
        quiet = json.loads((await heard(over_socket(service, teller(session_id, "e2", "quiet"))))[-1])
        assert "thinking_ms" not in quiet["messages"][-1]["metadata"]["extras"]


async def test_an_event_stream_says_the_same_and_the_compatible_protocol_nothing_of_it(start_service):
    async with start_service(ai=AI) as service:
        session_id = await service.create_session(agent_id="Teller")
        streamed = await heard(over_stream(service, teller(session_id)))
        assert transcript(streamed) == transcript(await heard(over_socket(service, resume_frame(session_id))))
        other = await service.create_session(agent_id="Teller")
        async with service.compatible() as socket:
            await say(socket, session_id=other, agent_id="Teller", message="Tell")
            frames = await hear_until(socket, "final")
        assert [frame["type"] for frame in frames] == ["stream"] * 3 + ["final"]
        assert SECRET not in json.dumps(frames)


async def test_a_turn_with_reasoning_cut_at_any_event_goes_on_as_if_it_was_not(start_service):
    async def cut_at(index):
        session_id = await service.create_session(agent_id="Teller")
        frame = teller(session_id, f"e{index}")
        uncut = group.create_task(heard(over_socket(service, frame)))
        first = await heard(over_socket(service, frame), up_to=index)
        again = after(first, frame)
        rest = await heard(over_socket(service, again)) if again else []
        assert transcript(first + rest) == transcript(await uncut)

    async with start_service(ai=AI, **KEEP) as service:
        async with asyncio.TaskGroup() as group:
            for index in range(len(EVENTS) + 5):
                group.create_task(cut_at(index))
        session_id = await service.create_session(agent_id="Teller")
        whole = await heard(over_socket(service, teller(session_id)))
        for index in range(last_seq(whole)):
            rest = await heard(over_socket(service, resume_frame(session_id, after_seq=index)))
            known = [text for text in whole if last_seq([text]) <= index]
            if last_seq(known) == index:
                assert transcript(known + rest) == transcript(whole)


@pytest.mark.parametrize("keep", [False, True])
async def test_reasoning_is_stored_only_where_that_is_wanted_and_custom_events_nowhere(
    start_service, database, tmp_path, caplog, keep
):
    for ours in ("agentic_backend", "backend_kit", "turnwise"):
        caplog.set_level(logging.DEBUG, ours)
    settings = {"ai": AI, "history": {"keep_thoughts": keep}, "persistence": {"spool_dir": str(tmp_path / "spool")}}
    async with start_service(**settings) as service:
        session_id = await service.create_session(agent_id="Teller")
        live = await heard(over_socket(service, teller(session_id)))
        assert SECRET in "".join(live)
        history = await service.history(session_id)
        spooled = b"".join(path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file())
    with psycopg.connect(database.dsn) as connection:
        rows = connection.execute("SELECT row_to_json(h)::text FROM session_history h").fetchall()
    stored = str(rows) + json.dumps(history) + spooled.decode(errors="replace")
    assert (SECRET in stored) == keep
    assert "looking" not in stored
    assert SECRET not in caplog.text
    async with start_service(**settings) as service:
        again = await heard(over_socket(service, resume_frame(session_id)))
        assert (SECRET in "".join(again)) == keep
        assert json.loads(again[-1])["messages"] == history


@pytest.mark.one_instance("what has ended is told from history by another instance, with other numbers")
async def test_kept_reasoning_is_a_message_of_each_stretch_and_is_told_again_from_history(start_service):
    async with start_service(ai=AI, **KEEP) as service:
        session_id = await service.create_session(agent_id="Teller")
        live = await heard(over_socket(service, teller(session_id)))
        history = await service.history(session_id)
        assert kinds(history) == [
            (0, "user", "final"),
            (1, "assistant", "thought"),
            (2, "system", "system_note"),
            (3, "assistant", "thought"),
            (4, "assistant", "final"),
        ]
        for message, text in ((history[1], STRETCHES[0]), (history[3], STRETCHES[1])):
            assert message["parts"] == [{"type": "text", "text": text}]
            assert message["metadata"]["extras"]["reasoning"] is True
            assert message["metadata"]["extras"]["thinking_ms"] >= 0
        assert history[4]["metadata"]["extras"]["late_thoughts"] == STRETCHES[2]
        assert history[4]["parts"] == [{"type": "text", "text": ANSWER}]
        whole = [frame["message"] for frame in map(json.loads, live) if frame["type"] == "message"]
        assert whole == history[:-1]
        # What agents get as history is the question and the answer.
        store = service.instances[0].running.chat.store
        remembered = await store.remembered(session_id, "admin", 10)
        assert [(item.role, item.text) for item in remembered] == [("user", "Tell"), ("assistant", ANSWER)]
    async with start_service(ai=AI, **KEEP) as service:
        again = await heard(over_socket(service, resume_frame(session_id)))
        assert told(again) == [
            ("accepted", None),
            ("final", "Tell"),
            ("thought", STRETCHES[0]),
            ("system_note", "Looked."),
            ("thought", STRETCHES[1]),
            ("delta", ANSWER),
            ("final", None),
        ]


async def test_the_compatible_protocol_gets_kept_reasoning_as_any_other_message(start_service):
    async with start_service(ai=AI, **KEEP) as service:
        session_id = await service.create_session(agent_id="Teller")
        async with service.compatible() as socket:
            await say(socket, session_id=session_id, agent_id="Teller", message="Tell")
            frames = await hear_until(socket, "final")
        channels = [frame["message"]["channel"] for frame in frames if frame["type"] == "stream"]
        assert channels == ["final", "thought", "system_note", "thought", "final"]
