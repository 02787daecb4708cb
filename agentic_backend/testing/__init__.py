"""For authors of agents: a scripted model, functions as tools, and a bench that runs an agent (docs/agents.md)."""

from agentic_backend.testing.bench import AgentBench, Outcome
from agentic_backend.testing.model import FakeModel, ScriptedAnswer, says, wants
from agentic_backend.testing.tools import FakeToolbox, ToolFailed

__all__ = ["AgentBench", "FakeModel", "FakeToolbox", "Outcome", "ScriptedAnswer", "ToolFailed", "says", "wants"]
