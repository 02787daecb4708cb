"""Graphs and models that fail, and turns that are stopped: what is told, what stays shown, and what the graph keeps."""

import asyncio
import re

import pytest

from tests.agentic_backend.llm.scripted import SSE_HEAD, sends, stalls_after, status, streams, token
from tests.hosted.stage import agents, ask, shown, stream, talk, text_of, told
from tests.support.following import stream_events
from tests.support.service import BASE, hear, hear_until, say
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECTIONS = {
    "ai": {
        **agents(
            Fails="broken",
            Endless="broken:endless",
            Exits="broken:exiting",
            ExitsInThread="broken:exiting_thread",
            Chatting="broken:chatting",
            Tools="tools",
            Blocking="odd:blocking_graph",
            Store="memory:blocking",
            Exit={"graph": "broken:chatting", "durability": "exit"},
        ),
        "recursion": {"recursion_limit": 7},
        "prices": [{"model": "scripted", "input_per_million": 1_000_000, "output_per_million": 2_000_000}],
    }
}
CHUNKED = SSE_HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")
BROKEN = {
    "llm_rate_limited": status(429),
    "llm_unavailable": status(500),
    "llm_protocol": status(400),
    "hangs up": sends(),
    "hangs up in the text": sends(CHUNKED, b"%x\r\n%s\r\n" % (len(token("Half")), token("Half"))),
    "garbage": streams(token("Half"), b"data: {no json}\n\n"),
    "garbage at once": sends(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n?!?"),
}
CODES = {
    "garbage at once": "llm_protocol",
    "hangs up": "llm_unavailable",
    "hangs up in the text": "llm_protocol",
    "garbage": "llm_protocol",
}


def sample(metrics, name, **labels):
    """The value of a series, 0 where it is not there."""
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    for line in metrics.splitlines():
        found = re.fullmatch(rf"{name}{{(.*)}} (\S+)", line)
        if found and wanted <= set(re.findall(r'\w+="[^"]*"', found[1])):
            return float(found[2])
    return 0.0


async def test_a_node_that_raises_is_internal_and_its_text_is_not_told(hosted):
    for way in (talk, stream):
        session_id = await hosted.create_session(agent_id="Fails")
        frames = await way(hosted, ask(session_id, "Fails", "Hello"))
        assert (frames[-1]["type"], frames[-1]["code"]) == ("error", "internal")
        history = await hosted.history(session_id)
        assert history[-1]["metadata"]["extras"]["error"] == "internal"
        assert ("fails", 1) in [(row["phase"], row["depth"]) for row in history[-1]["metadata"]["extras"]["ledger"]]
        assert "secret of the node" not in str(frames) + str(history)
    assert 'app_phase_latency_seconds_count{phase="fails",status="error"} 2.0' in await hosted.metrics()


@pytest.mark.parametrize(("agent", "message"), [("Exits", "exit"), ("Exits", "interrupt"), ("ExitsInThread", "exit")])
async def test_a_node_that_would_end_the_program_ends_its_turn_alone(hosted, agent, message):
    session_id = await hosted.create_session(agent_id=agent)
    frames = await talk(hosted, ask(session_id, agent, message))
    assert (frames[-1]["type"], frames[-1]["code"]) == ("error", "internal")
    assert hosted.process.returncode is None


async def test_a_graph_without_an_end_reaches_the_limit_of_recursion(hosted):
    session_id = await hosted.create_session(agent_id="Endless")
    frames = await talk(hosted, ask(session_id, "Endless", "Hello"))
    assert frames[-1]["code"] == "internal"
    ledger = (await hosted.history(session_id))[-1]["metadata"]["extras"]["ledger"]
    assert len([row for row in ledger if row["phase"] == "again"]) == 7


@pytest.mark.parametrize("way", BROKEN)
async def test_a_model_that_fails(hosted, stage, way):
    stage.play(says("Fine."), BROKEN[way], says("Fine again."))
    session_id = await hosted.create_session(agent_id="Chatting")
    await talk(hosted, ask(session_id, "Chatting", "First"))
    before = await hosted.metrics()
    frames = await talk(hosted, ask(session_id, "Chatting", "Second"))
    assert (frames[-1]["type"], frames[-1]["code"]) == ("error", CODES.get(way, way))
    after = await hosted.metrics()
    failed = {"model": "scripted", "status": "error"}
    name = "app_llm_request_seconds_count"
    assert sample(after, name, **failed) == sample(before, name, **failed) + 1
    # What failed has left no trace in what the graph knows.
    assert text_of(await talk(hosted, ask(session_id, "Chatting", "Third"))) == "Fine again."
    assert stage.asked() == [("user", "First"), ("assistant", "Fine."), ("user", "Third")]


async def test_each_call_of_a_model_is_counted_once(hosted, stage):
    stage.play(wants(("c1", "add", '{"a": 2, "b": 3}')), says("It is ", "5."))
    before = await hosted.metrics()
    session_id = await hosted.create_session(agent_id="Tools")
    frames = await talk(hosted, ask(session_id, "Tools", "Add 2 and 3"))
    after = await hosted.metrics()

    def more(name, **labels):
        labels["model"] = "scripted"
        return sample(after, name, **labels) - sample(before, name, **labels)

    assert more("app_llm_request_seconds_count", status="ok") == 2
    assert more("app_llm_time_to_first_chunk_seconds_count", status="ok") == 2
    assert more("app_llm_tokens_total", type="input") == 30
    assert more("app_llm_tokens_total", type="output") == 9
    assert more("app_llm_cost_total") == 30 + 2 * 9
    metadata = frames[-1]["messages"][-1]["metadata"]
    assert metadata["token_usage"] == {"input_tokens": 30, "output_tokens": 9, "total_tokens": 39}
    usage = metadata["extras"]["usage"]
    assert (usage["cost"], [step["step"] for step in usage["steps"]]) == (48, ["chat", "chat"])
    assert (metadata["model"], metadata["finish_reason"]) == ("scripted", "stop")


@pytest.mark.parametrize("agent", ["Chatting", "Exit"])
async def test_a_stop_reaches_the_node_and_its_model_and_keeps_what_was_shown(hosted, stage, agent):
    stage.play(says("Fine."), stalls_after(token("Half an "), token("answer")), says("Fine again."))
    session_id = await hosted.create_session(agent_id=agent)
    await talk(hosted, ask(session_id, agent, "First"))
    asked = ask(session_id, agent, f"Second of {agent}")
    async with hosted.native() as socket:
        await say(socket, **asked)
        text = ""
        while text != "Half an answer":
            frame = await hear(socket)
            text += frame.get("text", "")
        await say(socket, type="cancel", exchange_id=asked["client_exchange_id"])
        frames = await hear_until(socket, "cancelled")
    await stage.model.gone.wait()
    await hosted.line(f"the node is left: Second of {agent}")
    assert told(frames[-1]["messages"][-1]) == ("final", "Half an answer")
    history = await hosted.history(session_id)
    assert told(history[-1]) == ("final", "Half an answer")
    extras = history[-1]["metadata"]["extras"]
    assert extras["status"] == "interrupted"
    assert ("chat", 1) in [(row["phase"], row["depth"]) for row in extras["ledger"]]
    assert 'app_llm_request_seconds_count{model="scripted",status="cancelled"}' in await hosted.metrics()
    assert text_of(await talk(hosted, ask(session_id, agent, "Third"))) == "Fine again."
    assert stage.asked() == [("user", "First"), ("assistant", "Fine."), ("user", "Third")]


async def test_a_stop_ends_the_model_of_a_node_in_a_thread(hosted, stage):
    """At its next token: a thread cannot be cancelled."""

    async def slowly(write):
        await write(SSE_HEAD)
        while not stage.model.gone.is_set():
            await write(token("word "))
            await asyncio.sleep(0.02)

    stage.play(slowly, says("Fine."))
    session_id = await hosted.create_session(agent_id="Blocking")
    asked = ask(session_id, "Blocking", "First")
    async with hosted.native() as socket:
        await say(socket, **asked)
        await hear_until(socket, "delta")
        await say(socket, type="cancel", exchange_id=asked["client_exchange_id"])
        await hear_until(socket, "cancelled")
    await stage.model.gone.wait()
    assert text_of(await talk(hosted, ask(session_id, "Blocking", "Second"))) == "Fine."
    assert stage.asked() == [("user", "Second")]


async def test_an_asynchronous_node_that_waits_for_the_store_on_the_loop_fails_at_once(hosted):
    session_id = await hosted.create_session(agent_id="Store")
    assert (await talk(hosted, ask(session_id, "Store", "Hello")))[-1]["code"] == "internal"
    await hosted.line("an asynchronous node must await")


async def test_a_client_that_goes_away_with_its_event_stream_stops_nothing(hosted, stage):
    stage.play(says("One ", "answer."))
    session_id = await hosted.create_session(agent_id="Chatting")
    asked = ask(session_id, "Chatting", "First")
    async with hosted.http.post(f"{BASE}/chatbot/query/stream", json=asked) as response:
        async for _ in stream_events(response):
            break
        response.close()
    frames = await stream(
        hosted,
        {"type": "resume", "session_id": session_id, "after_seq": 0} | {"exchange_id": asked["client_exchange_id"]},
    )
    assert shown(frames)[-2:] == [("delta", "One answer."), ("final",)]
