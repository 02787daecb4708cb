"""The hashing embedder."""

import base64
import math
from array import array

import pytest

from ws_bench.fakes.embedding import as_base64, embed


def cosine(left: "array[float]", right: "array[float]") -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("text", ["", "one", "a sentence of several words", "ünïcode 日本語"])
def test_vectors_have_unit_length(text: str) -> None:
    vector = embed(text)
    assert len(vector) == 384
    assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-5)


def test_the_same_text_gives_the_same_bytes() -> None:
    assert embed("Phase by phase").tobytes() == embed("phase by PHASE").tobytes()
    assert embed([1, 2, 3], 8).tobytes() == embed([1, 2, 3], 8).tobytes()


def test_shared_words_mean_closeness() -> None:
    question = embed("how is the event loop lag measured")
    near, far = embed("the event loop lag is measured by a thread"), embed("bananas are yellow")
    assert cosine(question, near) > cosine(question, far) + 0.3


def test_base64_is_little_endian_float32() -> None:
    vector = embed("x", 16)
    decoded = array("f", base64.b64decode(as_base64(vector)))
    assert decoded == vector
