"""Agents as LangGraph graphs, run turn by turn without the caller knowing of graphs."""

from agentic_backend.agent.catalog import Agent, AgentUnusable, Catalog
from agentic_backend.agent.direct import DirectAnswer
from agentic_backend.agent.kit import AgentKit
from agentic_backend.agent.run import AgentAnswer, AgentRun, AgentState, FinishReason, HistoryItem

__all__ = [
    "Agent",
    "AgentAnswer",
    "AgentKit",
    "AgentRun",
    "AgentState",
    "AgentUnusable",
    "Catalog",
    "DirectAnswer",
    "FinishReason",
    "HistoryItem",
]
