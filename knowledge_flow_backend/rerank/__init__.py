"""The order of hits, decided again: the port, the local default, and what a failure leaves."""

from knowledge_flow_backend.rerank.port import Candidate, Reranker, RerankFailed
from knowledge_flow_backend.rerank.service import Reranked, RerankService

__all__ = ["Candidate", "RerankFailed", "RerankService", "Reranked", "Reranker"]
