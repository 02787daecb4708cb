"""kill -9 in the middle of a turn: the next process runs it again by itself, once, where its agent may."""

import json
import signal
import time

import jwt
import psycopg
import pytest

from agentic_backend.session.stream import RUN_SEQS
from tests.support.agentic import start_process
from tests.support.following import TERMINAL, ask_frame, heard, over_socket, over_stream, resume_frame, transcript
from tests.support.odd_agent import odd
from tests.support.service import hear, hear_until, say

__all__ = ["start_process"]

SILENT = "mock;ttft=600000"
"""A model that says nothing."""
SLOW = "mock;tokens=9;stall=3"
"""An answer that begins and never ends."""
QUICK = "mock;tokens=3"
GEORGES = {"name": "Georges", "class_path": "agentic_backend.agent.plain"}
RICO = {"name": "Rico", "class_path": "agentic_backend.agent.rag"}
SAMMY = {"name": "Sammy", "class_path": "agentic_backend.agent.tools"}
MEASURED = {"app": {"metrics_enabled": True, "log_level": "info"}}
CUT_OFF = {"status": "interrupted", "interrupted_by": "restart"}


def ask(session_id, exchange_id="e1", agent_id="Georges", **more):
    head = {"type": "ask", "session_id": session_id, "agent_id": agent_id, "message": "Who are you?"}
    return {**head, "client_exchange_id": exchange_id, **more}


async def begun(service, session_id, until, *, exchange_id="e1", agent_id="Georges", token="local"):
    """A turn in the middle, and in the spool; the last frame that its client has."""
    async with service.native(token) as socket:
        await say(socket, **ask(session_id, exchange_id, agent_id))
        frames = await hear_until(socket, until)
    await service.ask_on_disk(exchange_id)
    return frames[-1]


async def cut(start_process, model, until, **more):
    """Kill a service in the middle of a turn: the session, and the last frame that its client had."""
    async with start_process(model, **more) as service:
        session_id = await service.create_session()
        last = await begun(service, session_id, until)
        await service.process.until(service.process.kill)
    return session_id, last


def rows_of(database, session_id):
    """(rank, exchange, role) of the session's rows in Postgres."""
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(
            "SELECT rank, exchange_id, role FROM session_history WHERE session_id = %s ORDER BY rank", (session_id,)
        ).fetchall()


async def restarted(service):
    """How many turns the process has run again by itself."""
    lines = (await service.metrics()).splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith("app_turns_restarted_total "))
    return float(value)


@pytest.mark.parametrize(("model", "until"), [(SILENT, "message"), (SLOW, "delta")], ids=["before", "in its text"])
async def test_an_answer_comes_after_a_kill_though_nobody_is_there(start_process, database, model, until):
    session_id, _ = await cut(start_process, model, until)
    async with start_process(QUICK, **MEASURED) as service:
        await service.line(r"exchange_id=e1 .* status=ok ")
        question, answer = await service.history(session_id)
        assert (question["parts"][0]["text"], answer["metadata"]["finish_reason"]) == ("Who are you?", "stop")
        assert len(answer["parts"][0]["text"].split()) == 3
        assert "status" not in answer["metadata"]["extras"]
        assert await restarted(service) == 1
        await service.line("turns that the end of a process cut off are run again: 1")
        async with service.native() as socket:
            await say(socket, **ask(session_id))
            assert (await hear_until(socket, "final"))[-1]["messages"] == [question, answer]
        service.process.send(signal.SIGTERM)
        assert await service.ended() == 0
    assert rows_of(database, session_id) == [(0, "e1", "user"), (1, "e1", "assistant")]
    async with start_process(QUICK, **MEASURED) as service:
        assert await service.history(session_id) == [question, answer]
        assert await restarted(service) == 0


async def test_clients_that_come_back_find_it_running(start_process, database):
    session_id, last = await cut(start_process, SLOW, "delta")
    async with (
        start_process("mock;tokens=9;pause=3:600000") as service,
        service.native() as one,
        service.native() as other,
    ):
        await say(one, type="resume", session_id=session_id, exchange_id="e1", after_seq=last["seq"])
        await say(other, **ask(session_id))
        for socket in (one, other):  # what they have is replaced
            frames = await hear_until(socket, "delta")
            assert [(frame["seq"] - RUN_SEQS, frame["type"]) for frame in frames] == [
                (1, "restarted"),
                (2, "accepted"),
                (3, "message"),
                (4, "delta"),
            ]
        await say(one, **ask(session_id, "e2"))
        busy = await hear_of(one, "e2")
        assert (busy["type"], busy["code"]) == ("error", "session_busy")
        await say(other, type="cancel", exchange_id="e1")
        for socket in (one, other):
            stopped = await hear_end(socket)
            assert stopped["type"] == "cancelled"
            assert [message["rank"] for message in stopped["messages"]] == [0, 1]
        assert await service.history(session_id) == stopped["messages"]
    assert rows_of(database, session_id) == [(0, "e1", "user"), (1, "e1", "assistant")]


@pytest.mark.parametrize("over", [over_socket, over_stream])
async def test_who_resumes_after_a_kill_is_told_of_it_and_of_the_whole_new_run_to_its_one_end(start_process, over):
    async with start_process(SLOW) as service:
        session_id = await service.create_session()
        before = await heard(over(service, ask_frame(session_id)), up_to=3)
        await service.ask_on_disk("e1")
        await service.process.until(service.process.kill)
    had = [json.loads(frame) for frame in before]
    assert [frame["type"] for frame in had][:3] == ["accepted", "message", "delta"]
    async with start_process("mock;tokens=7") as service:
        frames = await heard(over(service, resume_frame(session_id, after_seq=had[-1]["seq"])))
        told = [json.loads(frame) for frame in frames]
        assert told[0] == {"type": "restarted", "session_id": session_id, "exchange_id": "e1", "seq": RUN_SEQS + 1}
        numbers = [frame["seq"] for frame in told]
        assert numbers == sorted(set(numbers))
        assert [frame["type"] for frame in told if frame["type"] in TERMINAL] == ["final"]
        question, answer = told[-1]["messages"]
        text = "".join(frame["text"] for frame in told if frame["type"] == "delta")
        assert (answer["parts"][0]["text"], len(text.split())) == (text, 7)
        assert [frame["message"] for frame in told if frame["type"] == "message"] == [question]
        # Cut anywhere in the new run, a client goes on with it as in any other.
        for cut_at in numbers[:-1]:
            rest = await heard(over(service, resume_frame(session_id, after_seq=cut_at)))
            kept = [frame for frame in frames if json.loads(frame)["seq"] <= cut_at]
            assert transcript(kept + rest) == transcript(frames)
        # Whoever has nothing gets the new run alone.
        for frame in (ask_frame(session_id), resume_frame(session_id)):
            assert transcript(await heard(over(service, frame))) == transcript(frames)


async def hear_of(socket, exchange_id):
    """The next frame of an exchange."""
    while (frame := await hear(socket))["exchange_id"] != exchange_id:
        pass
    return frame


async def hear_end(socket):
    """The next terminal frame."""
    while (frame := await hear(socket))["type"] not in {"final", "error", "cancelled"}:
        pass
    return frame


async def test_what_tools_may_have_done_is_not_done_again(start_process):
    agents = {"agents": [SAMMY, {**GEORGES, "restart": "never"}]}
    async with start_process(SILENT, ai=agents) as service:
        sammys = await service.create_session(agent_id="Sammy")
        never = await service.create_session()
        await begun(service, sammys, "message", exchange_id="e1", agent_id="Sammy")
        await begun(service, never, "message", exchange_id="e2")
        await service.process.until(service.process.kill)
    async with start_process(QUICK, ai=agents, **MEASURED) as service:
        for session_id in (sammys, never):
            assert (await service.history(session_id))[-1]["metadata"]["extras"] == CUT_OFF
        async with service.native() as socket:
            await say(socket, **ask(sammys, "e1", "Sammy"))
            assert (await hear_until(socket, "final"))[-1]["messages"][-1]["rank"] == 1
        assert await restarted(service) == 0


SECRET = "a shared secret of thirty-two characters"
ISSUER = "https://idp.example/realms/one"
AUTHENTICATION = {
    "user": {"enabled": True, "client_id": "app", "realm_url": ISSUER},
    "hs256_secret_env": "TEST_SECRET",
}


async def test_without_its_user_a_turn_that_needs_their_token_waits_for_them(start_process):
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "app", "sub": "ann", "iat": now, "exp": now + 600}
    token = jwt.encode(claims, SECRET, algorithm="HS256")
    agents = {"agents": [GEORGES, RICO], "knowledge_flow_url": "http://127.0.0.1:1/knowledge-flow/v1"}
    common = {"ai": agents, "security": AUTHENTICATION, "env": {"TEST_SECRET": SECRET}, "token": token}
    async with start_process(SILENT, **common) as service:
        georges, ricos = await service.create_session(), await service.create_session(agent_id="Rico")
        await begun(service, georges, "message", exchange_id="e1", token=token)
        await begun(service, ricos, "message", exchange_id="e2", agent_id="Rico", token=token)
        spool = b"".join(file.read_bytes() for file in service.spool.glob("spool-*"))
        assert b"Who are you?" in spool
        assert token.encode() not in spool
        await service.process.until(service.process.kill)
    async with start_process(QUICK, **common, **MEASURED) as service:
        await service.line(r"exchange_id=e1 .* status=ok ")
        assert (await service.history(ricos))[-1]["metadata"]["extras"] == CUT_OFF
        assert await restarted(service) == 1
        async with service.native(token) as socket:
            await say(socket, **ask(ricos, "e2", "Rico"))
            assert (await hear_until(socket, "final"))[-1]["messages"][-1]["metadata"]["finish_reason"] == "stop"


async def test_a_turn_that_kills_its_process_is_tried_once_more_and_no_more(start_process, tmp_path):
    when = tmp_path / "when"
    killer = odd("kill", when=str(when)) | {"restart": "from_question"}
    agents = {"agents": [killer, GEORGES]}
    async with start_process(QUICK, ai=agents) as service:
        session_id = await service.create_session(agent_id="kill")
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e1", "kill"))
            await hear_until(socket, "message")
            await service.ask_on_disk("e1")
            when.touch()
            assert await service.process.until(service.process.wait) == -signal.SIGKILL
    async with start_process(QUICK, ai=agents, path=None) as service:
        assert await service.process.until(service.process.wait) == -signal.SIGKILL
    assert when.read_text() == "killed\n" * 2
    async with start_process(QUICK, ai=agents, **MEASURED) as service:
        assert (await service.history(session_id))[-1]["metadata"]["extras"] == CUT_OFF
        assert await restarted(service) == 0
        other = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(other, "e2"))
            await hear_until(socket, "final")
    assert when.read_text() == "killed\n" * 2
