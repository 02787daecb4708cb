"""What the tests of rules and dashboards share: a real Prometheus on our files, and the names in a query."""

import asyncio
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from backend_kit.parent_death import with_parent_death_signal
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.processes import ROOT

PROMETHEUS = ROOT / "deploy/prometheus"
BUILT_IN = {"up", "scrape_duration_seconds", "ALERTS"}
"""What Prometheus makes itself."""

_WORDS = frozenset({"and", "or", "unless", "offset", "bool"})
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")


def metric_names(expr: str) -> set[str]:
    """Every metric that a query reads, histograms' parts and recorded series as they are written."""
    bare = re.sub(r'"[^"]*"', "", expr)
    for noise in (r"\{[^}]*\}", r"\[[^\]]*\]", r"\boffset\s+\w+", _LABELS):
        bare = re.sub(noise, " ", bare)
    names = re.findall(r"(?<![\w:.])([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare)
    return {name for name in names if name not in _WORDS}


Matchers = list[tuple[str, str, str]]
"""Label, operator and value of each matcher of a selector."""


def selectors(expr: str) -> list[tuple[str, Matchers]]:
    """Every selector of a query: the metric, and what it asks of its labels."""
    names = "|".join(map(re.escape, sorted(metric_names(expr), key=len, reverse=True)))
    found = re.findall(rf'(?<![\w:."])({names})\b(?:\{{([^}}]*)\}})?', expr)
    return [(name, re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', inside)) for name, inside in found]


def matches(labels: dict[str, str], matchers: Matchers) -> bool:
    """Whether Prometheus would take a series with these labels: one that it does not have is empty."""
    return all(
        (value == labels.get(label, "") if "~" not in operator else bool(re.fullmatch(value, labels.get(label, ""))))
        == (not operator.startswith("!"))
        for label, operator, value in matchers
    )


def family(name: str) -> str:
    """The metric that a series of a histogram belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def rules() -> list[dict[str, Any]]:
    """Every rule of every file, recording and alerting."""
    files = sorted((PROMETHEUS / "rules").glob("*.yml"))
    assert files
    return [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that scrapes each second."""

    url: str
    http: aiohttp.ClientSession

    async def query(self, expr: str) -> list[dict[str, Any]]:
        """What an instant query returns. Fails the test where Prometheus refuses it."""
        return await self._ask("query", query=expr)

    async def between(self, expr: str, start: float, end: float) -> list[dict[str, Any]]:
        """What a query returns for each second of a span of wall-clock time."""
        return await self._ask("query_range", query=expr, start=str(start), end=str(end), step="1")

    async def until(self, expr: str, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """The first answer to a query that is not empty."""
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            if found := await self.query(expr):
                return found
            await asyncio.sleep(0.1)
        pytest.fail(f"nothing for {expr} in {timeout_s} s", pytrace=False)

    async def _ask(self, kind: str, **form: str) -> list[dict[str, Any]]:
        async with self.http.post(f"{self.url}/api/v1/{kind}", data=form) as response:
            answer = await response.json()
        assert answer["status"] == "success", f"{form['query']}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


def configured(directory: Path, targets: dict[str, list[dict[str, Any]]]) -> Path:
    """Our scrape configuration and rules in a new directory, with these targets, each second instead of each 15."""
    directory.mkdir()
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    shutil.copytree(PROMETHEUS / "rules", directory / "rules")
    (directory / "targets").mkdir()
    for name, groups in targets.items():
        (directory / f"targets/{name}.yml").write_text(yaml.safe_dump(groups))
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    return file


@asynccontextmanager
async def prometheus(file: Path) -> AsyncIterator[Prometheus]:
    """Debian's Prometheus on a free port until the block ends; the block begins once it answers."""
    port = free_port()
    log = file.with_suffix(".log")
    command = [
        shutil.which("prometheus") or "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={file.parent / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = _started(command, log)
    try:
        give_up = time.monotonic() + PATIENCE_S
        while "Server is ready to receive web requests" not in log.read_text():
            if process.poll() is not None or time.monotonic() > give_up:
                pytest.fail(f"Prometheus is not ready:\n{log.read_text()}", pytrace=False)
            await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as http:
            yield Prometheus(f"http://127.0.0.1:{port}", http)
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)


def _started(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    # From the test's own thread: such a process ends with the thread that started it.
    with log.open("w") as output:
        return subprocess.Popen(with_parent_death_signal(command, signal.SIGKILL), stdout=output, stderr=output)
