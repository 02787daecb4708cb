"""Dashboards: their JSON, their layout, and every query of every panel on a real Prometheus under load."""

import asyncio
import itertools
import json
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from agentic_backend.metrics import AgenticMetrics
from backend_kit.kpi import Kpi
from deploy.grafana import annotate
from deploy.grafana.__main__ import DIRECTORY, files
from deploy.grafana.boards import all_dashboards
from deploy.grafana.model import BENCH_TAG, COLUMNS, Dashboard, Panel, Target
from deploy.grafana.promql import FINE
from tests.deploy.test_prometheus import RECORDED, exported_metrics, fed, scrapes
from tests.deploy.watched import (
    BUILT_IN,
    Prometheus,
    configured,
    family,
    matches,
    metric_names,
    prometheus,
    selectors,
)
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.agentic import ServiceProcess, StartProcess
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.service import StartService, hear_until, say

DASHBOARDS = {dashboard.uid: dashboard for dashboard in all_dashboards()}
PANELS = [
    pytest.param(panel, id=f"{dashboard.uid}: {panel.title}")
    for dashboard in DASHBOARDS.values()
    for panel in dashboard.panels()
]
STILL = {
    "Up": "1 as long as all is well",
    "What runs": "changes with a deployment",
    "Failing turns": "0 where no turn fails",
    "Failing turns by agent": "0 where no turn fails",
    "Failing calls": "0 where no call fails",
    "Cache look-ups that hit": "1 once a cache is warm",
    "File descriptors": "as many as there are sockets",
    "Turns over 5 s": "0 where none is that late",
    "Searches in progress": "a search may end between two scrapes",
    "Connections": "as many as the load needs",
    "Connections opened a second": "0 once the pools are warm",
    "Waiting for a connection": "0 while the pools are large enough",
    "Who bounds the service": "one cause as long as the load is the same",
    "Time in garbage collection": "0 between two collections",
    "Age of the oldest": "a record may come and go between two scrapes",
    "Files in work": "a file may come and go between two scrapes",
    "Size of the history": "read every few minutes",
    "Clock difference": "compared once a minute",
    "Failures": "0 where no task fails",
    "Threads": "1 as long as all is well",
    "How long texts gather": "0 while the loop has time",
    "Fragments of an answer": "as many as the model sends while the loop has time",
}
"""Panels whose data need not move while the services are healthy."""
SECONDS = 120


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_the_file_is_what_the_python_says(uid: str) -> None:
    assert (DIRECTORY / f"{uid}.json").read_text() == files()[f"{uid}.json"], "run python -m deploy.grafana"


def test_there_is_no_file_without_a_dashboard() -> None:
    assert {file.name for file in DIRECTORY.iterdir()} == set(files())


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap(uid: str) -> None:
    panels = json.loads((DIRECTORY / f"{uid}.json").read_text())["panels"]
    identities = [panel["id"] for panel in panels]
    assert len(set(identities)) == len(identities)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert max(column for column, _ in cells) < COLUMNS, panel["title"]
        taken |= cells


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_has_what_grafana_needs(uid: str) -> None:
    board = json.loads((DIRECTORY / f"{uid}.json").read_text())
    assert board["uid"] == uid
    assert len(uid) <= 40  # Grafana's limit
    assert board["id"] is None
    assert 39 <= board["schemaVersion"] <= 41
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[:4] == ["datasource", "job", "instance", "worker"]
    every = {variable["name"]: variable.get("allValue") for variable in board["templating"]["list"]}
    assert (every["job"], every["instance"], every["worker"]) == (".+", ".+", ".*")
    assert [annotation["name"] for annotation in board["annotations"]["list"]] == ["Benches", "Starts"]
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))
        used = set(re.findall(r"\$(\w+)", json.dumps(panel["targets"]))) - {"__rate_interval"}
        assert used <= set(variables), panel["title"]


def test_titles_are_unique() -> None:
    titles = [dashboard.title for dashboard in DASHBOARDS.values()]
    assert len(set(titles)) == len(titles)
    assert set(STILL) <= {panel.title for dashboard in DASHBOARDS.values() for panel in dashboard.panels()}


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_reads_rates_over_the_interval_that_grafana_chooses(panel: Panel) -> None:
    assert panel.description.endswith(".")
    for target in panel.targets:
        windows = re.findall(r"\[([^\]]*)\]", target.expr)
        assert set(windows) <= {"$__rate_interval"}
        assert "vector(" not in target.expr


def test_a_panel_says_how_far_its_percentiles_may_be_off() -> None:
    """By the bounds that the service has: with 2.5 and 5 s as neighbours a p95 of 3.1 s was drawn as 4.9."""
    registry = CollectorRegistry()
    AgenticMetrics(registry, Kpi(registry, service="t"))
    fine = {
        name
        for name, bounds in (
            (h._name, h._upper_bounds) for h in registry._collector_to_names if isinstance(h, Histogram)
        )
        if _widest(bounds) < 1.11
    }
    assert fine == FINE
    for dashboard in DASHBOARDS.values():
        for panel, drawn in zip(dashboard.panels(), _drawn(dashboard), strict=True):
            off = {
                _precision(name) for name in re.findall(r"histogram_quantile\(.*?(app_\w+)_bucket", str(panel.targets))
            }
            assert {word for word in ("a tenth off", "3 times apart") if word in drawn["description"]} == off


def _drawn(dashboard: Dashboard) -> list[dict[str, Any]]:
    return [panel for panel in dashboard.json()["panels"] if panel["type"] != "row"]


def _precision(histogram: str) -> str:
    return "a tenth off" if histogram in FINE else "3 times apart"


def _widest(bounds: list[float]) -> float:
    """The largest step between bounds from 50 ms to 60 s."""
    middle = [bound for bound in bounds if 0.05 <= bound <= 60]
    return max((high / low for low, high in itertools.pairwise(middle)), default=float("inf"))


@pytest.mark.parametrize("panel", PANELS)
def test_a_query_chooses_by_job_and_instance(panel: Panel) -> None:
    for target in panel.targets:
        chosen = selectors(target.expr)
        assert chosen
        for name, matchers in chosen:
            by = {label: value for label, operator, value in matchers if operator == "=~"}
            made_of_all = name in RECORDED or name == "ALERTS"
            assert (by["job"], by["instance"]) == ("$job", "$instance|" if made_of_all else "$instance"), target.expr


async def test_each_query_of_a_panel_finds_series_of_the_services_that_its_dashboard_shows(
    start_service: StartService, start_knowledge_flow: StartKnowledgeFlow
) -> None:
    """By default, and of panels that are mostly quiet, too: what a query asks for must be something that there is."""
    exposed = await scrapes(start_service, start_knowledge_flow)
    series = {
        job: [*_series(job, scrape), *_series(job, everything)]
        for (job, everything), scrape in zip(fed().items(), exposed, strict=True)
    }
    lost: list[str] = []
    for dashboard in DASHBOARDS.values():
        shown = [one for of_job in series.values() if _knows(of_job, dashboard.known_by) for one in of_job]
        assert shown
        for panel in dashboard.panels():
            lost += [f"{dashboard.uid}: {panel.title}: {what}" for t in panel.targets for what in _lost(t, shown)]
    assert lost == []


Series = tuple[str, dict[str, str]]


def _series(job: str, exposed: str) -> Iterator[Series]:
    """The series of an exposition as Prometheus keeps them."""
    of_target = {"job": job, "instance": "127.0.0.1:1", "worker": "0"}
    for metric in text_string_to_metric_families(exposed):
        for sample in metric.samples:
            yield sample.name, {**sample.labels, **of_target}


def _knows(series: list[Series], metric: str) -> bool:
    return any(name == metric for name, _ in series)


def _lost(target: Target, shown: list[Series]) -> Iterator[str]:
    """What a query asks for and none of the series has: metrics, values of labels, labels to sum by or to show."""
    labels: set[str] = set()
    for name, matchers in selectors(target.expr):
        if name in RECORDED | BUILT_IN:
            labels |= {"job", "instance", "worker", "alertname", "severity"}
            continue
        asked = [(label, operator, _WIDEST.get(value, value)) for label, operator, value in matchers]
        found = [of for metric, of in shown if metric == name and matches(of, asked)]
        labels |= {label for of in found for label in of}
        if not found:
            yield f"{name} {matchers}"
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", target.expr) for label in group.split(",")}
    yield from sorted((grouped | set(re.findall(r"{{(\w+)}}", target.legend))) - labels)


_WIDEST = {"$job": ".+", "$instance": ".+", "$worker": ".*", "$phase": "llm_invoke"}


async def test_every_metric_of_a_panel_is_exported(
    start_service: StartService, start_knowledge_flow: StartKnowledgeFlow
) -> None:
    exported = await exported_metrics(start_service, start_knowledge_flow)
    panels = [panel for dashboard in DASHBOARDS.values() for panel in dashboard.panels()]
    read = {name for panel in panels for target in panel.targets for name in metric_names(target.expr)}
    assert {family(name) for name in read} - exported - RECORDED - BUILT_IN == set()
    assert {dashboard.known_by for dashboard in DASHBOARDS.values()} <= exported


def test_provisioning_names_what_the_dashboards_ask_for() -> None:
    place = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((place / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((place / "dashboards/turnwise.yml").read_text())["providers"]
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["type"] == "prometheus"
    assert source["jsonData"]["timeInterval"] == scrape
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "/etc/turnwise/dashboards"


@pytest.mark.prometheus
@pytest.mark.timeout(240)
async def test_every_panel_returns_data_that_moves_under_load(
    start_process: StartProcess, start_knowledge_flow: StartKnowledgeFlow, tmp_path: Path
) -> None:
    async with _both(start_process, start_knowledge_flow, tmp_path) as (service, knowledge, server):
        began = time.time()
        pictures = [(dashboard, panel) for dashboard in DASHBOARDS.values() for panel in dashboard.panels()]
        expected = [(dashboard, panel) for dashboard, panel in pictures if panel.quiet is None]
        give_up = time.monotonic() + SECONDS
        round_ = 0
        while expected and time.monotonic() < give_up:
            await _load(service, knowledge, round_)
            round_ += 1
            expected = [picture for picture in expected if not await _moves(server, *picture, began)]
        still = ", ".join(f"{dashboard.uid}: {panel.title}" for dashboard, panel in expected)
        assert still == ""
        for dashboard, panel in pictures:  # also those without data: Prometheus understands each
            for target in panel.targets:
                await server.query(_filled(dashboard, target.expr))


@asynccontextmanager
async def _both(
    start_process: StartProcess, start_knowledge_flow: StartKnowledgeFlow, directory: Path
) -> AsyncIterator[tuple[ServiceProcess, RunningKnowledgeFlow, Prometheus]]:
    """Both services with a Georges and a Rico, and a Prometheus that scrapes them."""
    port = free_port()
    agents = [{"name": name, "class_path": f"agentic_backend.agent.{kind}"} for name, kind in _AGENTS.items()]
    async with start_knowledge_flow(app={"metrics_enabled": True, "metrics_port": port}) as knowledge:
        url = f"http://127.0.0.1:{knowledge.port}{BASE}"
        async with start_process(
            "mock;ttft=30;gap=2;tokens=10",
            app={"metrics_enabled": True, "kpi_log_summary_interval_sec": 2},
            ai={"knowledge_flow_url": url, "agents": agents},
        ) as service:
            targets = {
                "agentic": [{"targets": [f"127.0.0.1:{service.metrics_port}"]}],
                "knowledge-flow": [{"targets": [f"127.0.0.1:{port}"]}],
            }
            async with prometheus(configured(directory / "scraped", targets)) as server:
                await server.until("sum(up) == 2")
                yield service, knowledge, server


_AGENTS = {"Georges": "plain", "Rico": "rag"}


async def _load(service: ServiceProcess, knowledge: RunningKnowledgeFlow, round_: int) -> None:
    """Turns of both agents on a growing number of sockets, and a new document."""
    form = aiohttp.FormData()
    sentence = f"A finished turn is appended to the local spool of round {round_}. "
    text = f"# Persistence {round_}\n\n" + "\n\n".join([sentence * 20] * (1 + round_))
    form.add_field("files", text.encode(), filename=f"spool-{round_}.md", content_type="text/markdown")
    form.add_field("metadata_json", json.dumps({"tags": [], "source_tag": "fred"}))
    async with knowledge.http.post(f"{BASE}/upload-process-documents", data=form) as response:
        assert response.status == 200
        await response.read()
    async with asyncio.TaskGroup() as tasks:
        for number in range(1 + round_ % 3):
            for agent in _AGENTS:
                tasks.create_task(_turns(service, agent, 3), name=f"{agent} {number}")
        tasks.create_task(_turns(service, "Rico", 1, selected_document_libraries_ids=["none"]), name="finds nothing")


async def _turns(service: ServiceProcess, agent: str, count: int, **context: Any) -> None:
    session_id = await service.create_session(agent_id=agent)
    async with service.native() as socket:
        for _ in range(count):
            ask = {"session_id": session_id, "agent_id": agent, "message": "Where is a finished turn appended?"}
            await say(socket, type="ask", runtime_context=context, **ask)
            await hear_until(socket, "final")


async def _moves(server: Prometheus, dashboard: Dashboard, panel: Panel, began: float) -> bool:
    """Whether one of the panel's series has two values, or one where it need not move; each target has a series."""
    answers = [await server.between(_filled(dashboard, target.expr), began, time.time()) for target in panel.targets]
    if not all(answers):
        return False
    values = [{value for _, value in series["values"]} - {"NaN"} for answer in answers for series in answer]
    return any(len(seen) >= (1 if panel.title in STILL else 2) for seen in values)


def _filled(dashboard: Dashboard, expr: str) -> str:
    """The query with every variable at its widest."""
    fillings = {"$__rate_interval": "10s", "$job": ".+", "$instance": ".+", "$worker": ".*", "$phase": "stream_total"}
    if dashboard.known_by != "app_build_info":
        fillings["$job"] = "knowledge-flow" if dashboard.known_by.startswith("app_kf") else "agentic"
    for variable, value in fillings.items():
        expr = expr.replace(variable, value)
    assert "$" not in expr
    return expr


class Grafana(ThreadingHTTPServer):
    """The two calls of Grafana's HTTP API that make a mark, kept as they came: no Grafana is to be had here."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Calls)
        self.calls: list[tuple[str, str, str | None, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Calls(BaseHTTPRequestHandler):
    server: Grafana

    def _take(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.command, self.path, self.headers["Authorization"], body))
        answer = json.dumps({"message": "Annotation added", "id": 7}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PATCH = _take  # noqa: N815 - names of http.server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's signature
        pass


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    server = Grafana()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.servers
def test_a_command_is_marked_from_its_begin_to_its_end(
    grafana: Grafana, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(annotate.TOKEN_VARIABLE, "secret")
    ran = tmp_path / "ran"
    command = [sys.executable, "-c", f"import pathlib, sys; pathlib.Path({str(ran)!r}).touch(); sys.exit(3)"]
    code = annotate.main(["--url", grafana.url, "--tag", "nightly", "--text", "150 clients", "--", *command])
    assert code == 3
    assert ran.exists()
    (began, ended) = grafana.calls
    assert began[:3] == ("POST", "/api/annotations", "Bearer secret")
    assert ended[:3] == ("PATCH", "/api/annotations/7", "Bearer secret")
    assert (began[3]["tags"], began[3]["text"]) == ([BENCH_TAG, "nightly"], "150 clients")
    assert ended[3]["text"] == "150 clients (exit code 3)"
    assert began[3]["time"] <= ended[3]["timeEnd"]


@pytest.mark.servers
def test_without_grafana_the_command_runs_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert annotate.main(["--url", url, sys.executable, "-c", "print('ran')"]) == 0
    said = capfd.readouterr()
    assert said.out == "ran\n"
    assert said.err.startswith("annotate: the begin is not marked: ")


@pytest.mark.servers
def test_a_command_that_is_not_there_is_said(grafana: Grafana, capfd: pytest.CaptureFixture[str]) -> None:
    assert annotate.main(["--url", grafana.url, "no-such-program"]) == 127
    assert "no-such-program: No such file" in capfd.readouterr().err
    assert grafana.calls[-1][3]["text"] == "no-such-program (exit code 127)"
