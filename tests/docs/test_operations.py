import re
from typing import Any

import aiohttp
import pytest

from backend_kit.kpi import Kpi
from knowledge_flow_backend.metrics import PHASES
from tests.docs.pages import ROOT, table
from tests.knowledge_flow_backend.service import StartKnowledgeFlow
from tests.support.ports import free_port
from tests.support.service import RunningService, StartService, hear_until, say

PAGE = ROOT / "docs/operations.md"
METRICS = table(PAGE, "metric", "type", "labels", "summary key", "what")
KNOWLEDGE = table(PAGE, "metric of knowledge flow", "type", "labels", "summary key", "what")
STANDARD = {row[0].strip("`"): row[1] for row in METRICS if row[4] == "standard"}
KEYS = {key.strip("`") for row in METRICS for key in row[3].split(", ") if key}
MADE = {"agent_cache_hit_total", "agent_cache_miss_total", "llm.pool_wait_ms", "kf.pool_wait_ms"}
"""Keys that the source makes of a pattern: one line for several."""


async def scraped(start_service: StartService) -> dict[str, str]:
    """The metrics of a running service after a turn: name → type."""
    port = free_port()
    app = {"metrics_enabled": True, "metrics_port": port}
    async with start_service(app=app, metrics={"legacy_ms_names": True}) as service:
        await a_turn(service)
        return await exposed(port)


async def exposed(port: int) -> dict[str, str]:
    """What stands on a metrics port: name → type."""
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
        text = await response.text()
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


async def a_turn(service: RunningService) -> None:
    session_id = await service.create_session()
    async with service.native() as socket:
        await say(socket, type="ask", session_id=session_id, agent_id="Georges", message="Hello")
        await hear_until(socket, "final")


async def test_the_table_names_every_metric_of_a_running_service_and_no_other(start_service: StartService) -> None:
    documented = {name.strip("`"): kind for name, kind, *_ in METRICS}
    assert await scraped(start_service) == documented


async def test_the_table_of_knowledge_flow_names_every_metric_and_every_key(
    start_knowledge_flow: StartKnowledgeFlow,
) -> None:
    port = free_port()
    app = {"metrics_enabled": True, "metrics_port": port}
    async with start_knowledge_flow(app=app, metrics={"legacy_ms_names": True}) as service:
        hits = await service.search("anything")
        await service.post("/vector/rerank", {"question": "anything", "documents": hits})
        metrics = await exposed(port)
        kpi = service.service.running.runtime.summary._kpi
        kept: list[dict[str, Any]] = [kpi.timers, kpi.gauges, kpi.counters]
        seen = {key.partition("|")[0] for keys in kept for key in keys}
    assert {name.strip("`"): kind for name, kind, *_ in KNOWLEDGE} | STANDARD == metrics
    assert seen - {key.strip("`") for row in KNOWLEDGE for key in row[3].split(", ") if key} == set()


def test_the_phases_of_knowledge_flow_are_those_of_the_code() -> None:
    said = {phase.strip("`") for phase, _ in table(PAGE, "phase of knowledge flow", "what")}
    assert said == {*PHASES, "vector_search", "vector_rerank"}


async def test_every_key_of_the_summary_is_documented(service: RunningService) -> None:
    await a_turn(service)
    kpi: Kpi = service.service.running.chat.kpi
    kept: list[dict[str, Any]] = [kpi.timers, kpi.gauges, kpi.counters]
    seen = {key.partition("|")[0] for keys in kept for key in keys}
    assert seen - KEYS == set()


@pytest.mark.parametrize("key", sorted(KEYS - MADE))
def test_every_documented_key_of_the_summary_is_in_the_source(key: str) -> None:
    files = [ROOT / "agentic_backend/metrics.py", *(ROOT / "backend_kit/kpi").glob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    assert f'"{key}"' in source or f'"{key}|' in source


@pytest.mark.parametrize("package", ["agentic_backend", "knowledge_flow_backend"])
def test_labels_are_those_of_the_code(package: str) -> None:
    """A label that a dashboard asks for must be there: the table is compared with what the code declares."""
    files = [ROOT / package / "metrics.py", *(ROOT / "backend_kit").rglob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    declared = {
        name: re.findall(r'"(\w+)"', labels)
        for name, labels in re.findall(r'"((?:app|chat)_\w+)",\s*"[^"]*",\s*\[([^\]]*)\]', source)
    }
    rows = METRICS if package == "agentic_backend" else KNOWLEDGE
    documented = {name.strip("`"): [label for label in labels.split(", ") if label] for name, _, labels, *_ in rows}
    assert declared
    assert {name: documented[name] for name in declared} == declared


@pytest.mark.parametrize("row", KNOWLEDGE, ids=lambda row: row[0].strip("`"))
def test_every_key_of_knowledge_flow_is_in_the_source(row: list[str]) -> None:
    files = [ROOT / "knowledge_flow_backend/metrics.py", *(ROOT / "backend_kit/kpi").glob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    keys = [key.strip("`") for key in row[3].split(", ") if key]
    assert [key for key in keys if f'"{key}"' not in source and f'"{key}|' not in source] == []
