"""`python -m knowledge_flow_backend.embed.build FILE`: makes the int8 model file of the local embedder, once.

A child process of the service, so that what building needs (onnx, 90 MB of weights, 400 MB of memory) ends with it.
"""

import fcntl
import logging
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from knowledge_flow_backend.embed.local import LocalModel, weights_directory

# The model card's example, and what float32 gives for it. A file that is off by more has gone wrong in the making.
_SENTENCES = (
    "That is a happy person",
    "That is a happy dog",
    "That is a very happy person",
    "Today is a sunny day",
)
_COSINES = (0.6946, 0.9429, 0.2569)
_TOLERANCE = 0.03


def build(target: Path) -> None:
    """Make `target` unless it is there. Processes that start together make it once: the others wait for the lock."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as directory:
            made = _quantised(Path(directory))
            _check(made)
            made.replace(target)


def _quantised(directory: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from knowledge_flow_backend.embed.graph import build_model, read_safetensors

    exact, small = directory / "float32.onnx", directory / "int8.onnx"
    onnx.save(build_model(read_safetensors(weights_directory() / "model.safetensors")), str(exact))
    quantize_dynamic(exact, small, weight_type=QuantType.QInt8)
    return small


def _check(file: Path) -> None:
    vectors = LocalModel(file).encode(list(_SENTENCES))
    cosines = [float(vectors[0] @ vector) for vector in vectors[1:]]
    if not np.allclose(cosines, _COSINES, atol=_TOLERANCE):
        shown = ", ".join(f"{cosine:.4f}" for cosine in cosines)
        raise RuntimeError(f"the model file is wrong: cosines {shown} instead of {_COSINES}")


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.ERROR)  # the quantiser advises shapes that this graph has no use for
    os.umask(0o022)
    build(Path(sys.argv[1]))
