"""Texts become vectors: the port, the OpenAI-compatible endpoint, the local model, the micro-batcher before them.

The adapters are imported where they are used: the local one loads onnxruntime.
"""

from knowledge_flow_backend.embed.port import Embedder

__all__ = ["Embedder"]
