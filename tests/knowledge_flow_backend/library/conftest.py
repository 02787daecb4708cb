"""The same lab as ingestion's: a library is filled by uploads."""

from tests.knowledge_flow_backend.ingest.conftest import lab

__all__ = ["lab"]
