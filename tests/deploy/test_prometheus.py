"""Scrape configuration and rules: promtool's word on them, and what a real Prometheus makes of real services."""

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client import generate_latest

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.settings import AgenticApp
from agentic_backend.verdict import Gauged, TurnQuantiles, Windows
from backend_kit.http import Cost
from backend_kit.http.admission import AdmissionMetrics
from backend_kit.kpi import Kpi
from backend_kit.kpi.cores import Starvation, Starved
from knowledge_flow_backend.settings import KnowledgeFlowApp
from tests.agentic_backend import test_metrics
from tests.deploy.watched import BUILT_IN, PROMETHEUS, configured, family, metric_names, prometheus, rules
from tests.docs.pages import table
from tests.knowledge_flow_backend import test_metrics as knowledge_metrics
from tests.knowledge_flow_backend.service import BASE, StartKnowledgeFlow
from tests.knowledge_flow_backend.test_app_process import Configure, configure, program, searches_of, until_all_ready
from tests.support.agentic import StartProcess
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.service import StartService, hear_until, say

__all__ = ["configure"]

UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
OF_TIME = {
    "TargetDown", "TargetMissing", "EventLoopStalled", "EventLoopSaturated", "TurnTimeUnattributed", "TTFTBurnFast",
    "TTFTBurnSlow", "TurnsWaitForASlot", "PersistPoolSaturated", "PersistLagGrowing", "ClocksDiffer", "SpoolCommitSlow",
    "SearchSlow", "RerankSkipped", "EmbedQueueLong",
}  # fmt: skip
"""Alerts about how long something takes (or that there is no target): beside a load they may be right."""
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
SCENARIOS: list[dict[str, Any]] = [
    scenario for file in UNIT_TESTS for scenario in yaml.safe_load(file.read_text())["tests"]
]


def promtool(*arguments: str | Path, said: str = "") -> str:
    done = subprocess.run(["promtool", *arguments], input=said, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.servers
@pytest.mark.prometheus
def test_promtool_accepts_configuration_and_rules() -> None:
    promtool("check", "config", PROMETHEUS / "prometheus.yml")
    said = promtool("check", "rules", *sorted((PROMETHEUS / "rules").glob("*.yml")))
    assert sum(int(count) for count in re.findall(r"(\d+) rules found", said)) == len(rules())


@pytest.mark.servers
@pytest.mark.prometheus
@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda file: file.stem)
def test_promtool_passes_the_tests_of_the_rules(file: Path) -> None:
    promtool("test", "rules", file)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_scenario_in_which_it_fires_and_one_in_which_it_is_silent(alert: str) -> None:
    fires, silent = f"{alert} fires", f"{alert} is silent: "
    expected: dict[str, list[set[str]]] = {"fires": [], "silent": []}
    for scenario in SCENARIOS:
        kind = "fires" if scenario["name"].startswith(fires) else "silent"
        if kind == "fires" or scenario["name"].startswith(silent):
            expected[kind].append(_firing(scenario))
    assert expected["fires"]
    assert expected["silent"]
    assert all(alert in firing for firing in expected["fires"])
    assert all(alert not in firing for firing in expected["silent"])


def _firing(scenario: dict[str, Any]) -> set[str]:
    """The alerts that a scenario expects to fire at one time or another."""
    samples = [sample for test in scenario["promql_expr_test"] for sample in test["exp_samples"]]
    return {name for sample in samples for name in re.findall(r'alertname="(\w+)"', sample["labels"])}


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(alert: str) -> None:
    rule = ALERTS[alert]
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] in {heading.lower().replace(" ", "-") for heading in headings}


def test_an_alert_about_a_time_is_one_of_the_alerts() -> None:
    assert set(ALERTS) >= OF_TIME


def test_the_page_lists_every_alert_with_its_severity() -> None:
    rows = table(ROOT / "docs/operations.md", "alert", "severity", "fires when")
    assert {name.strip("`"): severity for name, severity, _ in rows} == {
        name: rule["labels"]["severity"] for name, rule in ALERTS.items()
    }


def test_the_targets_are_the_ports_of_the_defaults() -> None:
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    found = {
        job["job_name"]: yaml.safe_load((PROMETHEUS / job["file_sd_configs"][0]["files"][0]).read_text())
        for job in settings["scrape_configs"]
    }
    assert found == {
        name: [{"targets": [f"127.0.0.1:{app.metrics_port}"], "labels": {"worker": "0"}}]
        for name, app in (("agentic", AgenticApp()), ("knowledge-flow", KnowledgeFlowApp()))
    }


async def test_every_metric_of_the_rules_and_of_their_tests_is_exported(
    start_service: StartService, start_knowledge_flow: StartKnowledgeFlow
) -> None:
    exported = await exported_metrics(start_service, start_knowledge_flow)
    read = {family(name) for rule in rules() for name in metric_names(rule["expr"])}
    given = {
        family(series["series"].partition("{")[0]) for scenario in SCENARIOS for series in scenario["input_series"]
    }
    assert read - RECORDED - BUILT_IN - exported == set()
    assert given - BUILT_IN - exported == set()


def fed() -> dict[str, str]:
    """What each service's own metrics look like by default once all of them have been observed, by job."""
    agentic, knowledge = test_metrics.built(legacy_ms_names=False), knowledge_metrics.built(legacy_ms_names=False)
    test_metrics.feed(*agentic)
    knowledge_metrics.feed(*knowledge)
    _feed_what_is_rare(*agentic)
    return {
        job: generate_latest(kpi.registry).decode()
        for job, (kpi, _) in (("agentic", agentic), ("knowledge-flow", knowledge))
    }


def _feed_what_is_rare(kpi: Kpi, metrics: AgenticMetrics) -> None:
    """A turn, a phase and a request that failed, what there is at the end of a slice of time, and what the kernel of
    this machine may not tell."""
    Starved(kpi, 0.04).publish(Starvation(pressure_s=1.0))
    metrics.turns("Georges", "error").inc()
    kpi.record_phase("llm_invoke", 1.0, "error")
    AdmissionMetrics(kpi.registry).refused.labels(Cost.TURN.value, "per_user").inc()
    windows = Windows()
    TurnQuantiles(windows, kpi.registry)
    windows.ended([], total_ms=3000.0, unattributed_ms=0.0, first_token_ms=100.0)
    windows.close_slice(Gauged())


async def exported_metrics(start_service: StartService, start_knowledge_flow: StartKnowledgeFlow) -> set[str]:
    """The names on the metrics ports of both services."""
    exposed = "".join(await scrapes(start_service, start_knowledge_flow))
    return set(re.findall(r"^# TYPE (\S+) ", exposed, re.MULTILINE))


async def scrapes(start_service: StartService, start_knowledge_flow: StartKnowledgeFlow) -> list[str]:
    """What stands on the metrics ports of the agentic service and of knowledge flow, after an answer from sources.

    What is exported is as the defaults say.
    """
    ports = free_port(), free_port()
    app = [{"metrics_enabled": True, "metrics_port": port} for port in ports]
    agents = [{"name": "Rico", "class_path": "agentic_backend.agent.rag"}]
    async with start_knowledge_flow(app=app[1]) as knowledge:
        ai = {"knowledge_flow_url": f"http://127.0.0.1:{knowledge.port}{BASE}", "agents": agents}
        async with start_service(app=app[0], ai=ai) as service, aiohttp.ClientSession() as http:
            session_id = await service.create_session(agent_id="Rico")
            async with service.native() as socket:
                await say(socket, type="ask", session_id=session_id, agent_id="Rico", message="Hello")
                await hear_until(socket, "final")
            return [await _exposed(http, port) for port in ports]


async def _exposed(http: aiohttp.ClientSession, port: int) -> str:
    async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
        return await response.text()


@pytest.mark.parametrize(
    ("expr", "names"),
    [
        ("up == 0", {"up"}),
        ('sum by (job, le) (rate(a_bucket{phase="b_c"}[5m]))', {"a_bucket"}),
        ("histogram_quantile(0.95, sum(rate(x_bucket[5m])) by (le)) > 1e3", {"x_bucket"}),
        ("(a unless a offset 5m) > 0 or job:b:p95_5m * 14.4", {"a", "job:b:p95_5m"}),
        ("a / ignoring(status) group_left() b", {"a", "b"}),
    ],
)
def test_the_names_in_a_query_are_found(expr: str, names: set[str]) -> None:
    assert metric_names(expr) == names


@pytest.mark.prometheus
async def test_a_running_service_is_scraped_and_recorded(start_process: StartProcess, tmp_path: Path) -> None:
    async with start_process(app={"metrics_enabled": True}) as service:
        agentic = [{"targets": [f"127.0.0.1:{service.metrics_port}"]}]
        async with prometheus(configured(tmp_path / "scraped", {"agentic": agentic, "knowledge-flow": []})) as server:
            await server.until('up{job="agentic"} == 1')
            session_id = await service.create_session()
            async with service.native() as socket:
                for _ in range(3):
                    await say(socket, type="ask", session_id=session_id, agent_id="Georges", message="Hello")
                    await hear_until(socket, "final")
            await server.until('sum(app_turns_total{status="ok"}) == 3')
            # What appears with its first value has no rate yet: the second round is what the rules see.
            async with service.native() as socket:
                await say(socket, type="ask", session_id=session_id, agent_id="Georges", message="Hello")
                await hear_until(socket, "final")
            assert await server.until('job:app_turn_overhead_seconds:p95_5m{job="agentic"} > 0')
            (ratio,) = await server.until('agent:app_turns:error_ratio_5m{agent="Georges"}')
            assert float(ratio["value"][1]) == 0
            alerts = {row["metric"]["alertname"] for row in await server.query("ALERTS")}
            assert alerts - OF_TIME == set()


@pytest.mark.servers
@pytest.mark.prometheus
def test_promtool_has_nothing_to_say_of_any_metric() -> None:
    for exposed in fed().values():
        assert promtool("check", "metrics", said=exposed) == ""


@pytest.mark.servers
@pytest.mark.prometheus
async def test_promtool_has_nothing_to_say_of_what_the_services_expose_as_shipped(
    start_service: StartService, start_knowledge_flow: StartKnowledgeFlow
) -> None:
    for exposed in await scrapes(start_service, start_knowledge_flow):
        assert await asyncio.to_thread(promtool, "check", "metrics", said=exposed) == ""


@pytest.mark.prometheus
async def test_each_worker_of_knowledge_flow_is_a_target_and_sums_are_right(
    configure: Configure, tmp_path: Path
) -> None:
    environment, port, first = configure(2)
    async with program(environment) as process:
        await until_all_ready(process, first, port, 2)
        workers = [
            {"targets": [f"127.0.0.1:{first + number}"], "labels": {"worker": str(number)}} for number in range(2)
        ]
        async with prometheus(configured(tmp_path / "scraped", {"agentic": [], "knowledge-flow": workers})) as server:
            await server.until('sum(up{job="knowledge-flow"}) == 2')
            counted = {str(number): await searches_of(first + number) for number in range(2)}
            each = 'sum by (worker) (app_kf_request_seconds_count{route="search", status="ok"})'
            await server.until(f"sum({each}) == {sum(counted.values())}")
            assert {row["metric"]["worker"]: float(row["value"][1]) for row in await server.query(each)} == counted
    assert min(counted.values()) > 0
