"""Sammy as the shipped configuration has it in lines to be uncommented: with them it loads, and calls a real tool."""

import re
from pathlib import Path

import pytest
import yaml

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import load
from tests.agentic_backend.llm.scripted import scripted
from tests.support.service import hear_until, say
from tests.support.tool_model import says, wants
from tests.support.tool_server import tool_server

__all__ = ["tool_server"]

SHIPPED = Path(__file__).parents[2] / "config/agentic/configuration.yaml"
COMMAND = r"s/^\( *\)#~ /\1/"


@pytest.fixture
def switched_on(tmp_path):
    """The file after the command that its comment names."""
    text = SHIPPED.read_text()
    assert COMMAND in text
    file = tmp_path / "configuration.yaml"
    file.write_text(re.sub(r"^( *)#~ ", r"\1", text, flags=re.MULTILINE))
    return file


def test_without_those_lines_there_is_no_sammy_and_no_tool_server():
    settings = load(AgenticSettings, SHIPPED, {})
    assert [agent.id for agent in settings.ai.agents] == ["Georges", "Rico"]
    assert settings.mcp.servers == ()


async def test_the_uncommented_lines_are_a_sammy_that_calls_tools(switched_on, start_service, tool_server):
    assert load(AgenticSettings, switched_on, {}).ai.agents[-1].id == "Sammy"
    data = yaml.safe_load(switched_on.read_text())
    [server] = data["mcp"]["servers"]
    steps = (wants(("c1", "add", '{"a": 2, "b": 3}')), says("It is 5."))
    async with scripted(*steps) as model:
        chat_model = {"name": "scripted", "settings": {"base_url": model.base_url}}
        ai = {"agents": data["ai"]["agents"], "default_chat_model": chat_model}
        async with start_service(ai=ai, mcp={"servers": [{**server, "url": tool_server.url}]}) as service:
            session_id = await service.create_session(agent_id="Sammy")
            async with service.native() as socket:
                await say(socket, type="ask", session_id=session_id, agent_id="Sammy", message="2 and 3?")
                final = (await hear_until(socket, "final"))[-1]
    assert [message["channel"] for message in final["messages"]] == ["final", "tool_call", "tool_result", "final"]
    assert final["messages"][2]["parts"][0]["content"] == "5"
    assert final["messages"][3]["parts"][0]["text"] == "It is 5."
