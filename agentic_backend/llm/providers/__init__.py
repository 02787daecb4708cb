"""Models of other providers than those with OpenAI's chat completions: LangChain's classes, under our guarantees."""

from agentic_backend.llm.providers.guarded import GuardedChatModel
from agentic_backend.llm.providers.make import ModelUnusable
from agentic_backend.llm.providers.models import Models

__all__ = ["GuardedChatModel", "ModelUnusable", "Models"]
