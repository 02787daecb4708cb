"""No module is loaded on the loop: it would hold the loop for everybody, the MCP SDK for a second."""

from tests.support.agentic import start_process
from tests.support.following import TERMINAL, ask_frame
from tests.support.mcp_client import ERAS, mcp_client
from tests.support.service import hear, say
from tests.support.tool_server import tool_server

__all__ = ["start_process", "tool_server"]

WATCH = """
import asyncio, os, sys

class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if asyncio._get_running_loop() is not None:
            with open(os.environ["LOADED_ON_LOOP"], "a") as file:
                print(name, file=file)

sys.meta_path.insert(0, Watch)
"""
"""Run at the start of the process: it is asked first for each module that is not yet there."""

AGENTS = [
    {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
    {"name": "Rico", "class_path": "agentic_backend.agent.rag"},
    {"name": "Sammy", "class_path": "agentic_backend.agent.tools", "tuning": {"mcp_servers": [{"id": "s"}]}},
]


async def test_nothing_is_loaded_on_the_loop(start_process, tool_server, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    loaded = tmp_path / "loaded.txt"
    env = {"PYTHONPATH": str(tmp_path), "LOADED_ON_LOOP": str(loaded)}
    servers = [{"id": "s", "url": tool_server.url}]
    async with start_process(env=env, ai={"agents": AGENTS}, mcp={"servers": servers}) as service:
        at_start = loaded.read_text().split()
        session_id = await service.create_session()
        async with service.native() as socket:
            for agent in AGENTS:
                name = agent["name"]
                await say(socket, **ask_frame(session_id, name, "Add 2 and 3") | {"agent_id": name})
                while (await hear(socket))["type"] not in TERMINAL:
                    pass
        for era in ERAS:
            async with mcp_client(service.port, era) as client:
                assert not (await client.call_tool("ask_Georges", {"question": "Hello"})).is_error
        # The server's own few lines, before it accepts anybody.
        assert {name.partition(".")[0] for name in at_start} <= {"uvicorn", "fastapi"}
        assert loaded.read_text().split()[len(at_start) :] == []
