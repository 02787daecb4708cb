"""Everything that a custom agent may import from the service (docs/agents.md). What is not here may change at any
time."""

from agentic_backend.agent import AgentAnswer, AgentKit, AgentRun, AgentState, AgentUnusable, HistoryItem
from agentic_backend.agent.answering import answer_or_calls, conversation, stream_answer
from agentic_backend.agent.hosted.model import ModelCall, TurnModel, record_model_call
from agentic_backend.agent.kit import Graph, NamedModel
from agentic_backend.agent.toolbox import Tool, ToolAnswer, Toolbox, ToolCaller
from agentic_backend.errors import LlmTimeout, LlmUnavailable, TurnFailed
from agentic_backend.events import AgentEvent, Custom, Delta, Emit, Sources, Step, Thought, text_part
from agentic_backend.settings import AgentSettings, FieldSpec
from backend_kit.kpi import phase

__all__ = [
    "AgentAnswer",
    "AgentEvent",
    "AgentKit",
    "AgentRun",
    "AgentSettings",
    "AgentState",
    "AgentUnusable",
    "Custom",
    "Delta",
    "Emit",
    "FieldSpec",
    "Graph",
    "HistoryItem",
    "LlmTimeout",
    "LlmUnavailable",
    "ModelCall",
    "NamedModel",
    "Sources",
    "Step",
    "Thought",
    "Tool",
    "ToolAnswer",
    "ToolCaller",
    "Toolbox",
    "TurnFailed",
    "TurnModel",
    "answer_or_calls",
    "conversation",
    "phase",
    "record_model_call",
    "stream_answer",
    "text_part",
]
