"""The order of hits, decided again: the port, the local default, and what a failure leaves."""

from knowledge_flow_backend.rerank.service import Candidate, Reranked, Reranker, RerankFailed, RerankService

__all__ = ["Candidate", "RerankFailed", "RerankService", "Reranked", "Reranker"]
