"""The graphs of a project with a `langgraph.json`, unmodified: its environment, its packages, a model that reasons."""

from pathlib import Path

import pytest

from tests.hosted.stage import ask, phases, shown, stream, talk

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROJECT = Path(__file__).parent / "project"
SECTIONS = {"ai": {"agents": [], "langgraph_json": str(PROJECT / "langgraph.json")}}


@pytest.mark.parametrize("way", [talk, stream])
async def test_a_graph_of_the_project(hosted, way):
    session_id = await hosted.create_session(agent_id="greeter")
    frames = await way(hosted, ask(session_id, "greeter", "Ann"))
    assert shown(frames) == [("user", "Ann"), ("delta", "Good day, Ann!"), ("final",)]
    assert await hosted.history(session_id) == frames[-1]["messages"]
    assert ("greet", 1) in phases(frames[-1]["messages"][-1]["metadata"]["extras"])


@pytest.mark.parametrize("way", [talk, stream])
async def test_what_a_model_reasons_is_a_thought_and_not_part_of_the_answer(hosted, way):
    session_id = await hosted.create_session(agent_id="thinker")
    frames = await way(hosted, ask(session_id, "thinker", "Hello"))
    kinds = [one[0] for one in shown(frames)]
    assert kinds == ["user", "thought", "delta", "final"]
    thought, text = (one[1] for one in shown(frames)[1:3])
    assert len(thought.split()) == 4
    assert len(text.split()) == 3
    history = await hosted.history(session_id)
    assert history == frames[-1]["messages"]
    assert [one["parts"][0]["text"] for one in history] == ["Hello", text]
    metadata = history[-1]["metadata"]
    assert metadata["extras"]["thinking_ms"] >= 0
    assert metadata["extras"]["usage"]["reasoning_tokens"] == 4
    assert metadata["finish_reason"] == "stop"


async def test_the_agents_of_the_project_are_listed(hosted):
    listed = {agent["id"]: agent["tuning"]["description"] for agent in await hosted.get("/agents")}
    assert listed == {"greeter": "", "thinker": "Thinks first"}
