"""Many graphs at once on few connections, a graph of many nodes, and graphs while Postgres is away."""

import asyncio
import re

import pytest

from tests.hosted.stage import agents, ask, phases, talk, text_of
from tests.support.agentic import run_process
from tests.support.ports import free_port
from tests.support.postgres import Database, public_directory
from tests.support.service import configuration
from tests.support.tool_model import says
from turnwise.postgres import EmbeddedPostgres

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECTIONS = {
    "ai": agents(Typed="odd:typed_graph", Many="odd:many_graph"),
    "storage": {"postgres": {"pool_size": 2, "max_overflow": 2}},
    "limits": {"per_user": {"turns": 64, "asks_per_min": 1000, "burst": 1000, "sockets": 200}, "max_turns": 64},
}


async def test_fifty_sessions_at_once(hosted, stage):
    def choose(request):
        return says("You ", f"said {request.body['messages'][-1]['content']}.")

    stage.play_by(choose)
    sessions = [await hosted.create_session(agent_id="Typed") for _ in range(50)]

    async def converse(number, session_id):
        for turn in range(2):
            frames = await talk(hosted, ask(session_id, "Typed", f"{number}-{turn}"))
            assert text_of(frames) == f"You said {number}-{turn}."

    await asyncio.gather(*(converse(number, session_id) for number, session_id in enumerate(sessions)))
    # Each second request had its own session's first exchange, and nothing else.
    asked = [[one["content"] for one in request.body["messages"]] for request in stage.requests]
    seconds = {tuple(texts) for texts in asked if len(texts) == 3}
    assert seconds == {(f"{n}-0", f"You said {n}-0.", f"{n}-1") for n in range(50)}


async def test_of_many_nodes_the_first_are_labels_and_all_are_in_the_ledger(hosted):
    session_id = await hosted.create_session(agent_id="Many")
    frames = await talk(hosted, ask(session_id, "Many", "Hello"))
    assert text_of(frames) == ""
    extras = frames[-1]["messages"][-1]["metadata"]["extras"]
    assert [row for row in phases(extras) if row[0].startswith("node_")] == [(f"node_{n}", 1) for n in range(36)]
    metrics = await hosted.metrics()
    labels = set(re.findall(r'app_phase_latency_seconds_count\{phase="(node_\d+|other)",status="ok"\}', metrics))
    assert labels == {*(f"node_{number}" for number in range(32)), "other"}


async def test_a_state_that_cannot_be_read_is_told_and_the_next_turn_is_fine(stage, mock_llm, tmp_path):
    directory = public_directory("turnwise-hosted-pg-")
    postgres = EmbeddedPostgres(directory, free_port())
    postgres.prepare()
    try:
        await asyncio.to_thread(postgres.start)
        database = Database(postgres.host, postgres.port, postgres.database, "postgres")
        settings = configuration("scripted", database, mock_llm)
        settings["ai"] = {**settings["ai"], **SECTIONS["ai"]}
        settings["storage"]["postgres"].update(pool_timeout=3, connect_timeout=2)
        async with run_process(settings, tmp_path, env={"MODEL_URL": stage.url}, traceback_allowed=True) as service:
            stage.play(says("One."), says("Two."))
            session_id = await service.create_session(agent_id="Typed")
            await talk(service, ask(session_id, "Typed", "First"))
            await asyncio.to_thread(postgres.stop)
            end = (await talk(service, ask(session_id, "Typed", "Second")))[-1]
            assert (end["type"], end["code"], end["retryable"]) == ("error", "history_unavailable", True)
            assert len(stage.requests) == 1
            await asyncio.to_thread(postgres.start)
            await service.answers("/ready")
            assert text_of(await talk(service, ask(session_id, "Typed", "Third"))) == "Two."
            assert stage.asked() == [("user", "First"), ("assistant", "One."), ("user", "Third")]
    finally:
        await asyncio.to_thread(postgres.stop)
