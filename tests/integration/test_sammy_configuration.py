"""Sammy as the shipped configuration has it: with the mock model and our tools, and without the tools."""

from pathlib import Path

import yaml

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import load
from tests.support.ports import free_port
from tests.support.processes import ForkedModule
from tests.support.service import hear_until, say
from ws_bench.fakes.answers import NOT_ALLOWED, TOOLS_OUT_OF_REACH

SHIPPED = Path(__file__).parents[2] / "config/agentic/configuration.yaml"


def shipped(port):
    """The agents and the tool server of the file, but Rico, with the tools at that port."""
    data = yaml.safe_load(SHIPPED.read_text())
    [server] = data["mcp"]["servers"]
    agents = [agent for agent in data["ai"]["agents"] if agent["id"] != "Rico"]
    return {"ai": {"agents": agents}, "mcp": {"servers": [{**server, "url": f"http://127.0.0.1:{port}/mcp"}]}}


async def ask(service, agent, message, choice=None):
    """The final of a new conversation; `choice` is what a person says where they are asked."""
    session_id = await service.create_session(agent_id=agent)
    frame = {"session_id": session_id, "agent_id": agent}
    async with service.native() as socket:
        await say(socket, type="ask", message=message, **frame)
        if choice is not None:
            asked = (await hear_until(socket, "awaiting_human"))[-1]
            said = {"choice_id": choice, "checkpoint_id": asked["payload"]["checkpoint_id"]}
            await say(socket, type="human_resume", exchange_id=asked["exchange_id"], payload=said, **frame)
        return (await hear_until(socket, "final"))[-1]


def text_of(final):
    return final["messages"][-1]["parts"][0]["text"]


def test_the_shipped_tools_run_without_a_person_only_where_they_only_read():
    [server] = load(AgenticSettings, SHIPPED, {}).mcp.servers
    assert server.needs_approval("add_note", read_only=False)
    assert not server.needs_approval("list_notes", read_only=True)


async def test_a_person_decides_whether_a_note_is_changed(start_service, tmp_path):
    port = free_port()
    arguments = ("--port", str(port), "--notes", str(tmp_path / "notes.json"))
    with ForkedModule("turnwise.sample_tools", *arguments, stop_s=5) as tools:
        await tools.until(tools.wait_for_line, "listens on")
        async with start_service(model="mock", **shipped(port)) as service:
            assert text_of(await ask(service, "Sammy", "Add a note: buy milk", "deny")) == NOT_ALLOWED
            assert text_of(await ask(service, "Sammy", "Which notes are there?")) == "There are no notes."
            added = await ask(service, "Sammy", "Add a note: buy milk", "allow")
            assert text_of(added) == "Note 1 is kept: buy milk"
            assert text_of(await ask(service, "Sammy", "Which notes are there?")) == "There is 1 note: (1) buy milk"
            assert text_of(await ask(service, "Sammy", "Delete note 1", "allow")) == "Note 1 is deleted: buy milk"
            assert text_of(await ask(service, "Sammy", "Show my notes")) == "There are no notes."


async def test_without_its_tools_sammy_says_so_and_the_others_answer(start_service):
    async with start_service(model="mock", **shipped(free_port())) as service:
        final = await ask(service, "Sammy", "What time is it?")
        assert text_of(final).startswith(TOOLS_OUT_OF_REACH)
        assert final["warnings"] == ["answered_without_tools"]
        other = await ask(service, "Georges", "What is Turnwise?")
        assert text_of(other).startswith("Turnwise is")
        assert other["warnings"] == []
