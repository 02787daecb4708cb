"""The async clients of knowledge flow: searches and what citations open, each with one deadline; attachments; what a
person does with libraries."""

from agentic_backend.knowledge.attachments import (
    IMAGE_TYPES,
    MAX_IMAGE_BYTES,
    AttachmentClient,
    AttachmentEndpoint,
    Ingested,
    Redrawn,
)
from agentic_backend.knowledge.client import Caller, KnowledgeClient, KnowledgeEndpoint
from agentic_backend.knowledge.hits import Hit, SearchPolicy, SearchQuery
from agentic_backend.knowledge.libraries import KnowledgeRequest, KnowledgeStream, LibraryClient, LibraryEndpoint

__all__ = [
    "IMAGE_TYPES",
    "MAX_IMAGE_BYTES",
    "AttachmentClient",
    "AttachmentEndpoint",
    "Caller",
    "Hit",
    "Ingested",
    "KnowledgeClient",
    "KnowledgeEndpoint",
    "KnowledgeRequest",
    "KnowledgeStream",
    "LibraryClient",
    "LibraryEndpoint",
    "Redrawn",
    "SearchPolicy",
    "SearchQuery",
]
