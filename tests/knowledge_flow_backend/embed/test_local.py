"""The model in this process: made once, right in what it says, and never on the loop."""

import asyncio
import importlib.util
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed.batcher import BatchRules
from knowledge_flow_backend.embed.local import Encoder, LocalEmbedder, LocalModel, is_made, model_file, tokenizer_file
from knowledge_flow_backend.embed.weights import FILES, PACKAGE, WEIGHTS
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index.models import Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from tests.knowledge_flow_backend.corpus import vector
from tests.support.patience import PATIENCE_S
from tests.support.weights import weights

pytestmark = pytest.mark.servers

RULES = BatchRules(slots=1, queries=32, documents=4, waiting=100)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a model file, made by three processes at once."""
    home = tmp_path_factory.mktemp("home")
    file = model_file(home)
    command = [sys.executable, "-m", "knowledge_flow_backend.embed.build", str(file), str(weights())]
    builds = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(build.communicate() for build in builds) == [("", ""), ("", ""), ("building\n", "")]
    assert [build.returncode for build in builds] == [0, 0, 0]
    left = {file, file.with_suffix(".lock"), tokenizer_file(file)}
    assert set(file.parent.iterdir()) == left
    return home


@pytest.fixture(scope="session")
def model(home: Path) -> LocalModel:
    return LocalModel(model_file(home))


@pytest.fixture
async def tasks() -> AsyncIterator[TaskRegistry]:
    registry = TaskRegistry()
    yield registry
    await registry.aclose()


def embedder(
    home: Path, tasks: TaskRegistry, load: type[Encoder] | None = None, given: Path | None = None
) -> LocalEmbedder:
    kpi = Kpi(CollectorRegistry(), service="kf")
    metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
    return LocalEmbedder(
        home, threads=1, rules=RULES, metrics=metrics, tasks=tasks, weights=given or weights(), load=load or LocalModel
    )


def test_meaning_is_nearness(model: LocalModel) -> None:
    """The model card's sentences; 8-bit weights are off by a few hundredths."""
    person, dog, very, day = model.encode(
        ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    )
    cosines = [float(person @ other) for other in (dog, very, day)]
    assert np.allclose(cosines, [0.6946, 0.9429, 0.2569], atol=0.03)


def test_vectors_have_norm_one_and_do_not_depend_on_their_batch(model: LocalModel) -> None:
    texts = ["short", "a text of more words than the first one has", "", "漢字 and é"]
    together = model.encode(texts)
    for text, one in zip(texts, together, strict=True):
        assert one.dtype == np.float32
        assert one.shape == (384,)
        assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)
        assert (one == model.encode([text])[0]).all()


def test_a_text_is_read_up_to_256_tokens(model: LocalModel) -> None:
    filler = "alpha beta gamma delta " * 50
    first, same_after_256, other_at_200 = model.encode(
        [filler + "one " * 60, filler + "one " * 60 + "another end entirely", filler + "dogs and cats " * 30]
    )
    assert float(first @ same_after_256) == pytest.approx(1.0, abs=1e-4)
    assert float(first @ other_at_200) < 0.99


def test_torch_is_not_here() -> None:
    assert importlib.util.find_spec("torch") is None


async def test_the_model_is_made_and_loaded_in_the_background(tmp_path: Path, tasks: TaskRegistry) -> None:
    made = embedder(tmp_path, tasks)
    assert made.state == "loading"
    with pytest.raises(EmbeddingUnavailable, match="loading"):
        await made.embed_query("too early")
    made.start()
    async with asyncio.timeout(PATIENCE_S):
        while made.state in ("loading", "building"):  # noqa: ASYNC110 - a state that /ready asks for
            await asyncio.sleep(0.05)
    assert made.state == "ready"
    assert is_made(model_file(tmp_path))
    assert (await made.embed_query("q")).shape == (384,)
    await made.aclose()


async def test_a_place_that_cannot_be_written_is_said(
    tmp_path: Path, tasks: TaskRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").write_text("a file where the directory should be")
    made = embedder(tmp_path, tasks)
    await made.load()
    assert made.state == "failed"
    assert "could not be made (exit code 1)" in caplog.text
    with pytest.raises(EmbeddingUnavailable, match="failed"):
        await made.embed_query("q")
    await made.aclose()


async def test_weights_that_are_not_these_are_refused_for_good(
    tmp_path: Path, tasks: TaskRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    for name in FILES:
        (tmp_path / name).write_text("something else")
    made = embedder(tmp_path, tasks, given=tmp_path)
    await made.load()
    assert made.state == "failed"
    assert f"{WEIGHTS} is not that of {PACKAGE}" in caplog.text
    assert not is_made(model_file(tmp_path))
    await made.aclose()


class Blocking:
    """A model that holds its thread until `let` is set."""

    threads: set[int] = set()
    let = threading.Event()

    def __init__(self, _file: Path) -> None:
        self.threads.clear()
        self.let.clear()

    def encode(self, texts: list[str]) -> list[Vector]:
        self.threads.add(threading.get_ident())
        assert self.let.wait(PATIENCE_S)
        return [vector(text) for text in texts]


async def test_the_loop_does_not_notice_a_model_that_blocks(tmp_path: Path, tasks: TaskRegistry) -> None:
    """It goes on while the model holds its thread, which only the loop lets go."""
    file = model_file(tmp_path)
    file.parent.mkdir()
    file.touch()
    tokenizer_file(file).touch()
    made = embedder(tmp_path, tasks, Blocking)
    await made.load()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        asked = [group.create_task(made.embed_query(f"q{number}")) for number in range(3)]
        while not Blocking.threads:  # noqa: ASYNC110 - told by the model's thread
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in asked)
        Blocking.let.set()
    assert threading.get_ident() not in Blocking.threads
    await made.aclose()
