"""The model in this process: made once, right in what it says, and never on the loop."""

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed.batcher import BatchRules
from knowledge_flow_backend.embed.local import (
    BUILD,
    Encoder,
    LocalEmbedder,
    LocalModel,
    is_made,
    model_file,
    sums_file,
    sums_of,
    tokenizer_file,
)
from knowledge_flow_backend.embed.weights import FILES, PACKAGE, WEIGHTS
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index.models import Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from tests.knowledge_flow_backend.corpus import vector
from tests.support.patience import PATIENCE_S
from tests.support.small_disk import NoRight, small_disk
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
    left = {file, file.with_suffix(".lock"), tokenizer_file(file), sums_file(file)}
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
    home: Path,
    tasks: TaskRegistry,
    load: type[Encoder] | None = None,
    given: Path | None = None,
    build: Sequence[str] = BUILD,
) -> LocalEmbedder:
    kpi = Kpi(CollectorRegistry(), service="kf")
    return LocalEmbedder(
        home,
        threads=1,
        rules=RULES,
        metrics=KnowledgeFlowMetrics(kpi.registry, kpi),
        tasks=tasks,
        weights=given or weights(),
        load=load or LocalModel,
        build=build,
        retry_min_s=0.01,
    )


async def until(made: LocalEmbedder, state: str) -> None:
    """Wait until the embedder says that state."""
    async with asyncio.timeout(PATIENCE_S):
        while made.state != state:  # noqa: ASYNC110 - a state that /ready asks for
            await asyncio.sleep(0.01)


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
    await until(made, "ready")
    assert is_made(model_file(tmp_path))
    assert (await made.embed_query("q")).shape == (384,)
    await made.aclose()


@pytest.mark.parametrize("damage", ["half of the model", "a page of zeros", "an empty tokenizer", "no sums"])
async def test_a_damaged_model_file_is_built_again_and_never_computes(
    home: Path, tmp_path: Path, tasks: TaskRegistry, damage: str
) -> None:
    """As a power cut or a bad disk leaves it. A page of zeros in the model is loaded, and gives other vectors."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    file = model_file(tmp_path)
    match damage:
        case "half of the model":
            os.truncate(file, file.stat().st_size // 2)
        case "a page of zeros":
            with file.open("r+b") as whole:
                whole.seek(8_000_000)
                whole.write(bytes(4096))
        case "an empty tokenizer":
            os.truncate(tokenizer_file(file), 0)
        case "no sums":
            sums_file(file).unlink()
    assert not is_made(file)
    made = embedder(tmp_path, tasks)
    made.start()
    await until(made, "ready")
    assert is_made(file)
    assert sums_of(file) == sums_of(model_file(home))
    await made.aclose()


async def test_a_place_that_cannot_be_written_is_said_and_tried_again(
    tmp_path: Path, tasks: TaskRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    models = tmp_path / "models"
    models.write_text("a file where the directory should be")
    made = embedder(tmp_path, tasks)
    made.start()
    await until(made, "failed")
    assert f"could not be made ({models}: File exists). It is tried again in 0.01 s" in caplog.text
    with pytest.raises(EmbeddingUnavailable, match="failed"):
        await made.embed_query("q")
    models.unlink()
    await until(made, "ready")
    await made.aclose()


async def test_a_full_disk_is_not_taken_for_wrong_weights(
    tmp_path: Path, tasks: TaskRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        with small_disk(tmp_path / "disk", 20) as disk:
            made = embedder(disk, tasks)
            made.start()
            await until(made, "failed")
            assert "No space left on device). It is tried again in" in caplog.text
            assert "wheel of" not in caplog.text
            larger = ["mount", "-o", "remount,size=400m", str(disk)]
            await asyncio.to_thread(subprocess.run, larger, check=True)
            await until(made, "ready")
            await made.aclose()
    except NoRight:
        pytest.skip("no right to mount a file system")


KILLED_ONCE = """
import os, pathlib, signal, sys
from knowledge_flow_backend.embed.build import main
once = pathlib.Path(sys.argv[1])
if not once.exists():
    once.touch()
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main(sys.argv[2:]))
"""


async def test_a_build_that_the_kernel_kills_is_tried_again(
    tmp_path: Path, tasks: TaskRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    made = embedder(tmp_path, tasks, build=[sys.executable, "-c", KILLED_ONCE, str(tmp_path / "once")])
    made.start()
    await until(made, "ready")
    assert "could not be made (its process ended with -9). It is tried again in" in caplog.text
    await made.aclose()


async def test_a_build_that_cannot_be_started_is_tried_again(
    home: Path, tmp_path: Path, tasks: TaskRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """As without a free descriptor or process; here the program comes later."""
    program = tmp_path / "program"
    made = embedder(tmp_path, tasks, build=[str(program)])
    made.start()
    await until(made, "failed")
    assert "its process could not be started: No such file or directory" in caplog.text
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    await until(made, "ready")
    await made.aclose()


class FailingOnce(LocalModel):
    """A model that cannot be loaded the first time, as without memory."""

    failures: ClassVar[list[str]] = []

    def __init__(self, file: Path) -> None:
        if not self.failures:
            self.failures.append("once")
            raise MemoryError
        super().__init__(file)


async def test_a_model_that_could_not_be_loaded_is_loaded_later(home: Path, tasks: TaskRegistry) -> None:
    made = embedder(home, tasks, FailingOnce)
    made.start()
    await until(made, "failed")
    await until(made, "ready")
    assert tasks.failures["embed-model"] == 1
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
    sums_file(file).write_text(sums_of(file))
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
