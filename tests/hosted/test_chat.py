"""Graphs of anybody, unmodified, asked by a client."""

from tests.agentic_backend.llm.scripted import scripted
from tests.support.agentic import start_process
from tests.support.service import hear_until, say
from tests.support.tool_model import says, wants

__all__ = ["start_process"]


def hosted(model, graph, **agent):
    """A configuration with one hosted graph, whose own model is this one."""
    entry = {"name": "Hosted", "graph": graph, **agent}
    return {
        "env": {"MODEL_URL": model.base_url},
        "ai": {
            "default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}},
            "agents": [entry],
        },
    }


async def asked(service, session_id, message="Add 2 and 3", exchange_id="e1"):
    async with service.native() as socket:
        await say(
            socket,
            type="ask",
            session_id=session_id,
            agent_id="Hosted",
            message=message,
            client_exchange_id=exchange_id,
        )
        return await hear_until(socket, "final", "error", "awaiting_human")


async def test_a_graph_with_tools(start_process):
    calls = wants(("c1", "add", '{"a": 2, "b": 3}'), text="Let me see.")
    async with (
        scripted(calls, says("It is ", "5."), says("You asked for a sum.")) as model,
        start_process("scripted", **hosted(model, "tests.hosted.graphs.tools:graph")) as service,
    ):
        session_id = await service.create_session(agent_id="Hosted")
        frames = await asked(service, session_id)
        frames = await asked(service, session_id, "What did I ask?", "e2")
