"""A deterministic embedder without weights: words hashed into a unit vector, so that shared words mean closeness."""

import base64
import itertools
import math
import re
import zlib
from array import array
from collections.abc import Sequence

_WORD = re.compile(r"\w+")
DEFAULT_DIMENSIONS = 384
MAX_DIMENSIONS = 4096


def embed(text: str | Sequence[int], dimensions: int = DEFAULT_DIMENSIONS) -> "array[float]":
    """The unit vector (float32) of a text, or of a list of token ids. Equal input gives equal bytes on any machine.

    Each word and each pair of neighbours adds ±1 to the place that its CRC-32 names. A text without words points
    along the first axis.
    """
    words = _WORD.findall(text.lower()) if isinstance(text, str) else [str(token) for token in text]
    weights = [0.0] * dimensions
    for feature in (*words, *(f"{left} {right}" for left, right in itertools.pairwise(words))):
        digest = zlib.crc32(feature.encode())
        weights[(digest >> 1) % dimensions] += 1.0 if digest & 1 else -1.0
    norm = math.sqrt(math.fsum(weight * weight for weight in weights))
    if norm == 0:
        weights[0], norm = 1.0, 1.0
    return array("f", [weight / norm for weight in weights])


def as_base64(vector: "array[float]") -> str:
    """The vector as `encoding_format: base64` wants it: little-endian float32."""
    return base64.b64encode(vector.tobytes()).decode()
