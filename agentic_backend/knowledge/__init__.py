"""The async client of knowledge flow: search, rerank and what citations open, with limits and one deadline."""

from agentic_backend.knowledge.client import Caller, KnowledgeClient, KnowledgeEndpoint
from agentic_backend.knowledge.hits import Hit
from agentic_backend.knowledge.observer import KnowledgeObserver, Metered, Unobserved
from agentic_backend.knowledge.query import SearchPolicy, SearchQuery

__all__ = [
    "Caller",
    "Hit",
    "KnowledgeClient",
    "KnowledgeEndpoint",
    "KnowledgeObserver",
    "Metered",
    "SearchPolicy",
    "SearchQuery",
    "Unobserved",
]
