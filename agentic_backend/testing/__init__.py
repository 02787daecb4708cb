"""For authors of agents: a scripted model, functions as tools, a bench that runs an agent, and whole turns over storage
in memory (docs/agents.md)."""

from agentic_backend.testing.bench import AgentBench, Outcome
from agentic_backend.testing.model import Asked, FakeModel, ScriptedAnswer, says, wants
from agentic_backend.testing.storage import USER, MemoryState, MemoryStorage, TurnProcess, session_of
from agentic_backend.testing.tools import FakeToolbox, ToolFailed

__all__ = [
    "USER",
    "AgentBench",
    "Asked",
    "FakeModel",
    "FakeToolbox",
    "MemoryState",
    "MemoryStorage",
    "Outcome",
    "ScriptedAnswer",
    "ToolFailed",
    "TurnProcess",
    "says",
    "session_of",
    "wants",
]
