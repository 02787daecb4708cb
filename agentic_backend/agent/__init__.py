"""Agents as LangGraph graphs. They run turn by turn, and their callers need not know about graphs."""

from agentic_backend.agent import interrupts, rag, tools
from agentic_backend.agent.catalog import Agent, AgentUnusable, Catalog
from agentic_backend.agent.direct import TASK_PHASE, DirectAnswer, TaskAnswer, TaskWriter, TitleWriter
from agentic_backend.agent.graph_input import GraphDurability, GraphInput, GraphMode, StateChange
from agentic_backend.agent.hosted import PHASES as HOSTED_PHASES
from agentic_backend.agent.hosted import Hosting
from agentic_backend.agent.interrupts import ResumedRun, SavedRun, Waiting
from agentic_backend.agent.kit import AgentKit
from agentic_backend.agent.run import (
    AgentAnswer,
    AgentRun,
    AgentState,
    FinishReason,
    MovesOn,
    TurnAgent,
    TurnAgents,
)
from agentic_backend.llm.prompt import HistoryItem

AGENT_PHASES = (*rag.PHASES, *tools.PHASES, *interrupts.PHASES, *HOSTED_PHASES, TASK_PHASE)
"""Phases of the built-in agents, in addition to those that every process knows."""

__all__ = [
    "AGENT_PHASES",
    "Agent",
    "AgentAnswer",
    "AgentKit",
    "AgentRun",
    "AgentState",
    "AgentUnusable",
    "Catalog",
    "DirectAnswer",
    "FinishReason",
    "GraphDurability",
    "GraphInput",
    "GraphMode",
    "HistoryItem",
    "Hosting",
    "MovesOn",
    "ResumedRun",
    "SavedRun",
    "StateChange",
    "TaskAnswer",
    "TaskWriter",
    "TitleWriter",
    "TurnAgent",
    "TurnAgents",
    "Waiting",
]
