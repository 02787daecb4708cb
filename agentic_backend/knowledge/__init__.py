"""The async clients of knowledge flow: search, rerank and what citations open, with one deadline; attachments."""

from agentic_backend.knowledge.attachments import AttachmentClient, AttachmentEndpoint, Ingested
from agentic_backend.knowledge.client import Caller, KnowledgeClient, KnowledgeEndpoint
from agentic_backend.knowledge.hits import Hit, SearchPolicy, SearchQuery

__all__ = [
    "AttachmentClient",
    "AttachmentEndpoint",
    "Caller",
    "Hit",
    "Ingested",
    "KnowledgeClient",
    "KnowledgeEndpoint",
    "SearchPolicy",
    "SearchQuery",
]
