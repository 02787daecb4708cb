"""`python -m knowledge_flow_backend.embed.build FILE [WEIGHTS]`: builds the local embedder's int8 model file once.

A child process of the service, so that what building needs (onnx, 90 MB of weights, 400 MB of memory) ends with it. It
prints what it does, a word a line: `fetching`, `building`.
"""

import fcntl
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from knowledge_flow_backend.embed.local import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    LocalModel,
    is_made,
    sums_file,
    sums_of,
    tokenizer_file,
)
from knowledge_flow_backend.embed.weights import TOKENIZER, WEIGHTS, WeightsRefused, WeightsUnreachable, put_weights

# The model card's example, and what float32 gives for it. A file that differs by more was built wrongly.
_SENTENCES = (
    "That is a happy person",
    "That is a happy dog",
    "That is a very happy person",
    "Today is a sunny day",
)
_COSINES = (0.6946, 0.9429, 0.2569)
_TOLERANCE = 0.03


def build(target: Path, weights: Path | None = None) -> None:
    """Build `target` and its tokenizer unless they are there and whole. Of processes that start together one builds
    them, and the others wait for its lock. Killed at any moment, it leaves nothing that `is_made` takes for a model.

    Raises what `put_weights` raises, or OSError where the disk refuses.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_made(target):
            return
        mine = f".build-{target.stem}-"
        for left in target.parent.glob(f"{mine}*"):  # by a killed process: a living one holds the lock
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=mine, dir=target.parent) as directory:
            if weights is None:
                _print_step("fetching")
            put_weights(Path(directory), weights, os.environ)
            _print_step("building")
            made = _quantised(Path(directory))
            tokenizer = tokenizer_file(made)
            Path(directory, TOKENIZER).rename(tokenizer)
            _check(made)
            tokenizer.replace(tokenizer_file(target))
            made.replace(target)
            sums = Path(directory, "sums")
            sums.write_text(sums_of(target))
            sums.replace(sums_file(target))


def _print_step(step: str) -> None:
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()


def _quantised(directory: Path) -> Path:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from knowledge_flow_backend.embed.graph import build_model, read_safetensors

    exact, small = directory / "float32.onnx", directory / "int8.onnx"
    onnx.save(build_model(read_safetensors(directory / WEIGHTS)), str(exact))
    quantize_dynamic(exact, small, weight_type=QuantType.QInt8)
    return small


def _check(file: Path) -> None:
    vectors = LocalModel(file).encode(list(_SENTENCES))
    cosines = [float(vectors[0] @ vector) for vector in vectors[1:]]
    if not np.allclose(cosines, _COSINES, atol=_TOLERANCE):
        shown = ", ".join(f"{cosine:.4f}" for cosine in cosines)
        raise RuntimeError(f"the model file is wrong: cosines {shown} instead of {_COSINES}")


def main(arguments: list[str]) -> int:
    """Build; the exit code: 0, or with the reason on stderr `EXIT_UNREACHABLE`, `EXIT_REFUSED`, or 1 for all else."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the fetching child ends too
    logging.getLogger().setLevel(logging.ERROR)  # the quantiser advises shapes that this graph has no use for
    os.umask(0o022)
    target, *given = arguments
    try:
        build(Path(target), Path(given[0]) if given else None)
    except (WeightsRefused, WeightsUnreachable) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_UNREACHABLE if isinstance(error, WeightsUnreachable) else EXIT_REFUSED
    except OSError as error:
        place = error.filename or Path(target).parent
        sys.stderr.write(f"{place}: {os.strerror(error.errno or 0)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
