"""Chat models on langchain-openai, with the limits, deadlines and retries that a turn needs."""

from agentic_backend.llm.endpoint import CallDeadlines, Endpoint, connections_of, endpoint_of
from agentic_backend.llm.models import ModelPool
from agentic_backend.llm.observer import CallStatus, LlmObserver, Metered, TokenUse, Unobserved

__all__ = [
    "CallDeadlines",
    "CallStatus",
    "Endpoint",
    "LlmObserver",
    "Metered",
    "ModelPool",
    "TokenUse",
    "Unobserved",
    "connections_of",
    "endpoint_of",
]
