"""The same service as ingestion's tests have: a library is filled by uploads."""

from tests.knowledge_flow_backend.ingest.conftest import ingestion

__all__ = ["ingestion"]
