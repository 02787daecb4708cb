"""The compose file, held to the files, settings and ports that it speaks of; no engine has run it."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic_backend.settings import AgenticSettings
from backend_kit.settings.load import load
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.deploy.test_docker import STAGES
from tests.deploy.watched import PROMETHEUS
from tests.support.processes import ROOT

DIRECTORY = ROOT / "deploy/compose"
COMPOSE: dict[str, Any] = yaml.safe_load((DIRECTORY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
SECRETS = {"FRED_POSTGRES_PASSWORD": "secret"}
AGENTIC = load(AgenticSettings, DIRECTORY / "agentic.yaml", SECRETS)
KNOWLEDGE = load(KnowledgeFlowSettings, DIRECTORY / "knowledge_flow.yaml", SECRETS)
HOME = "/var/lib/turnwise"


def seconds(duration: str) -> int:
    assert duration.endswith("s")
    return int(duration[:-1])


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_has_a_version_or_is_built_here(name: str) -> None:
    service = SERVICES[name]
    if name in OURS:
        build = service["build"]
        assert (DIRECTORY / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert build["target"] in STAGES
    else:
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(-pg\d+)?", service["image"]), service["image"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_exists_and_is_declared(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, target, *mode = volume.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (DIRECTORY / source).exists(), source
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]


def test_every_volume_is_mounted_once() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert sorted(source for source in mounted if not source.startswith(".")) == sorted(COMPOSE["volumes"])


def test_only_loopback_is_published_and_no_metrics_port() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in published), published
    numbers = {int(port.rsplit(":", 1)[1]) for port in published}
    workers = {KNOWLEDGE.app.metrics_port + number for number in range(KNOWLEDGE.app.workers)}
    assert numbers & {AGENTIC.app.metrics_port, *workers} == set()
    assert {AGENTIC.app.port, KNOWLEDGE.app.port} <= numbers


def test_every_variable_is_in_the_example_and_the_required_ones_have_no_default() -> None:
    text = (DIRECTORY / "compose.yaml").read_text()
    used = dict(re.findall(r"\$\{(\w+):([-?])[^}]*\}", text))
    assert len(re.findall(r"\$\{", text)) == len(re.findall(r"\$\{\w+:[-?]", text))
    example = re.findall(r"^(\w+)=$", (DIRECTORY / "example.env").read_text(), re.MULTILINE)
    assert set(used) == set(example)
    assert {name for name, kind in used.items() if kind == "?"} == {"POSTGRES_PASSWORD", "GRAFANA_PASSWORD"}


@pytest.mark.parametrize(
    ("name", "settings"), [("agentic", AgenticSettings), ("knowledge-flow", KnowledgeFlowSettings)]
)
def test_a_service_is_given_only_variables_that_it_knows(
    name: str, settings: type[AgenticSettings] | type[KnowledgeFlowSettings]
) -> None:
    known = {*settings.env_overrides, "CONFIG_FILE", "ENV_FILE", "TURNWISE_GIT_SHA"}
    assert set(SERVICES[name]["environment"]) <= known
    configured = [
        word.partition("=")[2]
        for rest in STAGES[name].all("ENV")
        for word in rest.split()
        if word.startswith("CONFIG_FILE=")
    ]
    assert [volume.split(":")[1] for volume in SERVICES[name]["volumes"] if volume.endswith(":ro")] == configured


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_no_more_rights_than_they_need(name: str) -> None:
    service = OURS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_a_container_is_killed_only_after_its_drain() -> None:
    # docs/operations.md: drain_s + 20 s, and drain_s + 10 s for a worker of knowledge flow.
    assert seconds(SERVICES["agentic"]["stop_grace_period"]) > AGENTIC.deadlines.drain_s + 20
    assert seconds(SERVICES["knowledge-flow"]["stop_grace_period"]) > KNOWLEDGE.deadlines.drain_s + 10


def test_the_spool_outlives_the_container() -> None:
    assert AGENTIC.persistence.ack == "spool"
    assert Path(AGENTIC.persistence.spool_dir).is_relative_to(HOME)
    for name in ("agentic", "knowledge-flow"):
        assert f"{name}:{HOME}" in SERVICES[name]["volumes"]


def test_services_wait_for_what_can_say_that_it_is_healthy() -> None:
    for service in SERVICES.values():
        for name, wanted in service.get("depends_on", {}).items():
            assert "healthcheck" in SERVICES[name]
            assert wanted["condition"] in ("service_healthy", "service_started")
            assert "profiles" not in SERVICES[name]


@pytest.mark.parametrize(("name", "settings"), [("agentic", AGENTIC), ("knowledge-flow", KNOWLEDGE)])
def test_ready_is_asked_where_the_service_listens(name: str, settings: AgenticSettings | KnowledgeFlowSettings) -> None:
    app = settings.app
    assert SERVICES[name]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{app.port}{app.base_url}/ready"
    assert (app.address, app.metrics_address) == ("0.0.0.0", "0.0.0.0")  # noqa: S104 - of a container


def test_containers_find_one_another_by_name() -> None:
    hosts = {
        AGENTIC.storage.postgres.host,
        KNOWLEDGE.storage.postgres.host,
        *re.findall(r"http://([\w-]+):", (DIRECTORY / "agentic.yaml").read_text()),
        *re.findall(r"http://([\w-]+):", SERVICES["grafana"]["environment"]["PROMETHEUS_URL"]),
    }
    assert hosts == {"postgres", "knowledge-flow", "mock-model", "prometheus"}
    assert hosts <= set(SERVICES)


def test_the_agents_are_those_of_a_local_start_but_for_what_it_brings() -> None:
    local = yaml.safe_load((ROOT / "config/agentic/configuration.yaml").read_text())
    here = yaml.safe_load((DIRECTORY / "agentic.yaml").read_text())
    # Sammy's tools run beside a local start alone, and so does what Rico's suggestions ask about.
    wanted = [agent for agent in local["ai"]["agents"] if agent["id"] != "Sammy"]
    assert [agent | {"starters": []} for agent in here["ai"]["agents"]] == [
        agent | {"starters": []} for agent in wanted
    ]


def test_each_worker_is_a_target() -> None:
    for name, app in (("agentic", AGENTIC.app), ("knowledge-flow", KNOWLEDGE.app)):
        assert yaml.safe_load((DIRECTORY / f"targets/{name}.yml").read_text()) == [
            {"targets": [f"{name}:{port}"], "labels": {"worker": str(number)}}
            for number, port in enumerate(app.metrics_ports)
        ]


def test_postgres_has_a_connection_for_each_that_the_pools_may_open() -> None:
    command = " ".join(SERVICES["postgres"]["command"])
    (allowed,) = re.findall(r"max_connections=(\d+)", command)
    agentic, knowledge = AGENTIC.storage.postgres, KNOWLEDGE.storage.postgres
    pools = agentic.pool_size + agentic.max_overflow
    pools += KNOWLEDGE.app.workers * (knowledge.pool_size + knowledge.max_overflow)
    assert pools + 20 <= int(allowed)


@pytest.mark.servers
@pytest.mark.prometheus
def test_prometheus_accepts_what_it_finds_in_its_container(tmp_path: Path) -> None:
    mounted = [volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"] if volume.startswith(".")]
    for source, target in mounted:
        place = tmp_path / Path(target).relative_to("/etc/prometheus")
        origin = DIRECTORY / source
        shutil.copytree(origin, place) if origin.is_dir() else shutil.copy(origin, place)
    assert {path.name for path in tmp_path.iterdir()} == {"prometheus.yml", "rules", "targets"}
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    assert (tmp_path / "prometheus.yml").read_text() == (PROMETHEUS / "prometheus.yml").read_text()


def test_grafana_finds_its_dashboards_where_provisioning_looks() -> None:
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/turnwise.yml").read_text())
    place = provider["providers"][0]["options"]["path"]
    grafana = SERVICES["grafana"]
    assert f"../grafana/dashboards:{place}:ro" in grafana["volumes"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == place
    assert (ROOT / "deploy/grafana/dashboards" / home.name).is_file()
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "$PROMETHEUS_URL"
