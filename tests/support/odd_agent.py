"""An agent that does what no agent should: `mode` block (holds the loop for `block_s`, 200 ms), talk (says 4 MiB at
once), raise, leak, unbuildable, or kill (its process, once the file `when` is there, to which it adds a line for each
run).
"""

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun
from agentic_backend.agent.kit import Graph
from agentic_backend.agent.run import AgentState
from agentic_backend.events import Delta
from agentic_backend.settings import AgentSettings

BLOCK_S = 0.2
TALK = ("x" * 65_536,) * 64


def build(settings: AgentSettings, _kit: AgentKit) -> Graph:
    """A graph of one node that answers `Done.`, or fails."""
    mode = settings.tuned("mode", "block")
    if mode == "unbuildable":
        raise ZeroDivisionError("in the agent's build")

    async def misbehave(_state: AgentState, runtime: Runtime[AgentRun]) -> AgentState:
        if mode == "raise":
            raise ZeroDivisionError("in the agent's node")
        if mode == "kill":
            await kill_process(Path(settings.tuned("when", "")))
        if mode == "leak":
            return {"answer": AgentAnswer(given_away(runtime.context))}
        if mode == "talk":
            for text in TALK:
                runtime.context.emit(Delta(text))
            return {"answer": AgentAnswer("".join(TALK))}
        time.sleep(settings.tuned("block_s", BLOCK_S))  # noqa: ASYNC251 - that is the point
        return {"answer": AgentAnswer("Done.")}

    graph = StateGraph(AgentState, context_schema=AgentRun)
    graph.add_node("misbehave", misbehave)
    graph.add_edge(START, "misbehave")
    graph.add_edge("misbehave", END)
    return graph.compile()


async def kill_process(when: Path) -> None:
    """End the process as a crash does."""
    while not await asyncio.to_thread(when.exists):  # noqa: ASYNC110 - a file is asked
        await asyncio.sleep(0.02)
    with when.open("a") as file:
        file.write("killed\n")
    os.kill(os.getpid(), signal.SIGKILL)


def given_away(run: AgentRun) -> str:
    """The asker's token, in the log and as the answer."""
    assert run.credentials is not None
    token = run.credentials.reveal()
    logging.getLogger(__name__).debug("asked with %s", token)
    return token


def odd(mode: str, **tuned: object) -> dict[str, object]:
    """The agent's entry in `ai.agents`; its id is the mode."""
    fields = [{"key": key, "default": value} for key, value in {"mode": mode, **tuned}.items()]
    return {"id": mode, "name": mode, "class_path": __name__, "tuning": {"fields": fields}}
