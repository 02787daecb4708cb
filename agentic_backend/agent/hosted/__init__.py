"""Compiled LangGraph graphs of anybody, run as agents: what they stream, keep and ask becomes a turn's."""

from agentic_backend.agent.hosted.agent import PHASES, HostedAgent, Hosting
from agentic_backend.agent.hosted.state import GraphState
from agentic_backend.agent.hosted.watch import GRAPH

__all__ = ["GRAPH", "PHASES", "GraphState", "HostedAgent", "Hosting"]
