"""Embeddings of the fake model: words hashed into a unit vector, so that texts that share words lie close together."""

import base64
import itertools
import math
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ws_bench.fakes.http import BadRequest, json_object
from ws_bench.fakes.text import words

DEFAULT_DIMENSIONS = 384
MAX_DIMENSIONS = 4096
_MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A checked embeddings request: texts or token lists."""

    model: str
    inputs: list[str | list[int]]
    dimensions: int
    base64: bool


def embed(text: str | Sequence[int], dimensions: int = DEFAULT_DIMENSIONS) -> "array[float]":
    """The unit vector (float32) of a text, or of a list of token ids. Equal input gives equal bytes on any machine.

    Each word and each pair of neighbours adds ±1 to the place that its CRC-32 names. A text without words points
    along the first axis.
    """
    features = words(text) if isinstance(text, str) else [str(token) for token in text]
    weights = [0.0] * dimensions
    for feature in (*features, *(f"{left} {right}" for left, right in itertools.pairwise(features))):
        digest = zlib.crc32(feature.encode())
        weights[(digest >> 1) % dimensions] += 1.0 if digest & 1 else -1.0
    norm = math.sqrt(math.fsum(weight * weight for weight in weights))
    if norm == 0:
        weights[0], norm = 1.0, 1.0
    return array("f", [weight / norm for weight in weights])


def embedding_request(body: bytes) -> EmbeddingRequest:
    """Read a request as OpenAI-compatible clients send it. Raises `BadRequest`."""
    request = json_object(body, "model")
    dimensions = request.get("dimensions") or DEFAULT_DIMENSIONS
    if not isinstance(dimensions, int) or not 1 <= dimensions <= MAX_DIMENSIONS:
        raise BadRequest(f"`dimensions` must be in 1..{MAX_DIMENSIONS}")
    inputs = _inputs_of(request.get("input"))
    if not 1 <= len(inputs) <= _MAX_INPUTS:
        raise BadRequest(f"`input` must hold 1..{_MAX_INPUTS} texts")
    return EmbeddingRequest(request["model"], inputs, dimensions, request.get("encoding_format") == "base64")


def embedding_body(request: EmbeddingRequest) -> dict[str, object]:
    """The answer, one vector per input."""
    data = []
    tokens = 0
    for index, text in enumerate(request.inputs):
        vector = embed(text, request.dimensions)
        tokens += len(text.split()) if isinstance(text, str) else len(text)
        shown: object = as_base64(vector) if request.base64 else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": shown})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": request.model, "usage": usage}


def _inputs_of(given: Any) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise BadRequest("`input` must be a text, a list of texts, or token ids")
    if given and all(isinstance(item, int) for item in given):
        return [given]
    if not all(isinstance(item, str) or _is_tokens(item) for item in given):
        raise BadRequest("`input` must be a text, a list of texts, or token ids")
    return given


def _is_tokens(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(token, int) for token in item)


def as_base64(vector: "array[float]") -> str:
    """The vector as `encoding_format: base64` wants it: little-endian float32."""
    return base64.b64encode(vector.tobytes()).decode()
