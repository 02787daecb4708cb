"""An agent whose question says how it ends: `fail`, `fail late`, `wait`, `cite`, `ask`, `answer oddly`, `cite oddly`,
`step oddly`; others it answers in capitals, one that ends with `in parts` word by word.
"""

import asyncio
import re

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun
from agentic_backend.agent.kit import Graph
from agentic_backend.agent.run import AgentState
from agentic_backend.errors import LlmTimeout
from agentic_backend.events import Delta, Sources, Step, text_part
from agentic_backend.settings import AgentSettings

INTERRUPTS = True
HIT = {"uid": "d1", "title": "A document", "content": "Some text.", "score": 0.5}


def build(_settings: AgentSettings, _kit: AgentKit) -> Graph:
    async def echo(state: AgentState, runtime: Runtime[AgentRun]) -> AgentState:
        emit, question = runtime.context.emit, state["message"]
        if question == "fail":
            raise LlmTimeout
        emit(Step("assistant", "thought", [text_part("loudly")]))
        if question == "step oddly":
            emit(Step("assistant", "tool_call", [{"type": "tool_call", "args": object()}]))
        if question == "ask":
            interrupt("Sure?")
        if question == "cite":
            emit(Sources([HIT]))
        if question == "cite oddly":
            emit(Sources([{**HIT, "content": object()}]))
        for text in re.findall(r"\S+ ?", question.upper()) if question.endswith("in parts") else [question.upper()]:
            emit(Delta(text))
        if question == "fail late":
            raise LlmTimeout
        if question == "wait":
            await asyncio.Event().wait()
        sources = {"sources": [HIT]} if question == "cite" else {}
        warnings = {"extras": {"warnings": ["answered_without_documents"]}}
        odd = {"of": object()} if question == "answer oddly" else {}
        metadata = {"model": "echo", "finish_reason": "stop", **sources, **warnings, **odd}
        return {"answer": AgentAnswer(question.upper(), metadata=metadata, warnings=["answered_without_documents"])}

    graph = StateGraph(AgentState, context_schema=AgentRun)
    graph.add_node("echo", echo)
    graph.add_edge(START, "echo")
    graph.add_edge("echo", END)
    return graph.compile()
