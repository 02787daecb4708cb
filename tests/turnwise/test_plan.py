"""What is started, by the configuration files and the environment."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from turnwise.errors import StartRefused
from turnwise.home import resource_directory
from turnwise.plan import OPENAI_URL, Plan, read_plan

AGENTIC: dict[str, Any] = {
    "app": {"base_url": "/agentic/v1", "address": "127.0.0.1", "port": 18000, "metrics_port": 19005},
    "ai": {"default_chat_model": {"name": "mock", "settings": {"base_url": "http://127.0.0.1:18099/v1"}}},
    "storage": {"postgres": {"host": "127.0.0.1", "port": 15543, "database": "turnwise", "username": "postgres"}},
}
KNOWLEDGE: dict[str, Any] = {"app": {"base_url": "/knowledge-flow/v1", "port": 18111, "metrics_port": 19111}}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "agentic.yaml").write_text(yaml.safe_dump(AGENTIC))
    (tmp_path / "knowledge.yaml").write_text(yaml.safe_dump(KNOWLEDGE))
    return tmp_path / "agentic.yaml", tmp_path / "knowledge.yaml"


def changed(files: tuple[Path, Path], section: str, **values: object) -> None:
    data = yaml.safe_load(files[0].read_text())
    target = data
    for key in section.split("."):
        target = target[key]
    target.update(values)
    files[0].write_text(yaml.safe_dump(data))


def plan(
    files: tuple[Path, Path], environ: dict[str, str] | None = None, *, bench: bool = False, port: int | None = None
) -> Plan:
    return read_plan(*files, environ or {}, bench=bench, port=port)


def test_ports_are_those_of_the_files(files: tuple[Path, Path]) -> None:
    wanted = {(want.purpose, want.port) for want in plan(files).ports()}
    assert wanted >= {
        ("Postgres", 15543),
        ("the mock model", 18099),
        ("agentic", 18000),
        ("agentic metrics", 19005),
    }


def test_addresses_are_reachable_ones(files: tuple[Path, Path]) -> None:
    changed(files, "app", address="0.0.0.0", metrics_address="::")  # noqa: S104 - only read
    agentic = plan(files).agentic
    assert agentic.origin == "http://127.0.0.1:18000"
    assert agentic.metrics_url == "http://[::1]:19005/metrics"


def test_without_metrics_no_port_is_wanted_for_them(files: tuple[Path, Path]) -> None:
    changed(files, "app", metrics_enabled=False)
    assert plan(files).agentic.metrics_url is None
    assert 19005 not in {want.port for want in plan(files).ports()}


@pytest.mark.parametrize(
    ("environ", "mock", "override"),
    [
        ({}, "http://127.0.0.1:18099/v1", None),
        ({"OPENAI_API_KEY": ""}, "http://127.0.0.1:18099/v1", None),
        ({"OPENAI_API_KEY": "k"}, None, OPENAI_URL),
        ({"OPENAI_BASE_URL": "http://m/v1"}, None, "http://m/v1"),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://m/v1"}, None, "http://m/v1"),
    ],
)
def test_the_mock_model_gives_way_to_a_real_one(
    files: tuple[Path, Path], environ: dict[str, str], mock: str | None, override: str | None
) -> None:
    made = plan(files, environ)
    assert made.model_url == mock
    assert made.environment.get("OPENAI_BASE_URL") == override


def test_a_key_in_the_env_file_counts_too(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=k\n")
    assert plan(files, {"ENV_FILE": str(tmp_path / ".env")}).model_url is None


def test_a_bench_stays_on_the_machine(files: tuple[Path, Path]) -> None:
    made = plan(
        files, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://m/v1", "ENV_FILE": "/x", "A": "b"}, bench=True
    )
    assert made.model_url == "http://127.0.0.1:18099/v1"
    assert made.environment == {"A": "b"}


def test_a_model_of_another_provider_is_not_started(files: tuple[Path, Path]) -> None:
    """Ollama is mostly on this machine, and nothing of ours."""
    changed(files, "ai.default_chat_model", provider="ollama")
    made = plan(files, {"OPENAI_API_KEY": "k"})
    assert made.model_url is None
    assert "OPENAI_BASE_URL" not in made.environment
    assert "the mock model" not in {want.purpose for want in made.ports()}


def test_a_model_and_a_database_elsewhere_are_not_started(files: tuple[Path, Path]) -> None:
    changed(files, "storage.postgres", host="db.example")
    changed(files, "ai.default_chat_model.settings", base_url="https://model.example/v1")
    made = plan(files)
    assert (made.postgres_port, made.model_url) == (None, None)


TOOLS = {"id": "samples", "url": "http://127.0.0.1:18765/mcp"}


@pytest.mark.parametrize(
    ("changes", "port"),
    [
        ({}, 18765),
        ({"enabled": False}, None),
        ({"id": "mine"}, None),
        ({"url": "http://tools.example:18765/mcp"}, None),
    ],
)
def test_our_tools_are_started_where_the_file_uses_them_here(
    files: tuple[Path, Path], changes: dict[str, object], port: int | None
) -> None:
    files[0].write_text(yaml.safe_dump({**AGENTIC, "mcp": {"servers": [{**TOOLS, **changes}]}}))
    made = plan(files)
    assert made.tools_port == port
    assert [want.port for want in made.ports() if want.purpose == "the sample tools"] == (
        [] if port is None else [port]
    )


def test_our_tools_move_with_the_rest(files: tuple[Path, Path]) -> None:
    files[0].write_text(yaml.safe_dump({**AGENTIC, "mcp": {"servers": [TOOLS]}}))
    made = plan(files, port=9000)
    assert made.agentic.content is not None
    assert made.agentic.content["mcp"]["servers"][0]["url"] == f"http://127.0.0.1:{made.tools_port}/mcp"
    assert made.tools_port in range(9001, 9010)


@pytest.mark.parametrize("port", ["8000", 0, 70000, None])
def test_what_is_no_port_is_refused_with_file_and_key(files: tuple[Path, Path], port: object) -> None:
    changed(files, "app", port=port)
    with pytest.raises(StartRefused, match=r"agentic\.yaml: app\.port: must be a port number"):
        plan(files)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"nowhere\.yaml: cannot be read"):
        read_plan(tmp_path / "nowhere.yaml", tmp_path / "nowhere.yaml", {}, bench=False)


def test_a_port_of_ones_own_moves_everything_and_every_url_between(files: tuple[Path, Path]) -> None:
    changed(files, "ai", knowledge_flow_url="http://127.0.0.1:18111/knowledge-flow/v1")
    made = plan(files, port=9000)
    assert [(want.purpose, want.port) for want in sorted(made.ports(), key=lambda want: want.port)] == [
        ("agentic", 9000),
        ("agentic metrics", 9001),
        ("knowledge flow", 9002),
        ("the mock model", 9003),
        ("Postgres", 9004),
        ("knowledge flow metrics", 9005),
    ]
    assert made.agentic.content is not None
    assert made.agentic.content["ai"]["knowledge_flow_url"] == "http://127.0.0.1:9002/knowledge-flow/v1"
    assert made.agentic.content["ai"]["default_chat_model"]["settings"]["base_url"] == made.model_url
    assert made.agentic.content["storage"]["postgres"]["port"] == made.postgres_port == 9004


def test_what_is_elsewhere_stays_where_it_is(files: tuple[Path, Path]) -> None:
    changed(files, "storage.postgres", host="db.example", port=18000)
    changed(files, "ai.default_chat_model.settings", base_url="http://model.example:18000/v1")
    content = plan(files, port=9000).agentic.content
    assert content is not None
    assert content["storage"]["postgres"]["port"] == 18000
    assert content["ai"]["default_chat_model"]["settings"]["base_url"] == "http://model.example:18000/v1"


@pytest.mark.parametrize("port", [0, 65_531, 99_999])
def test_a_port_that_leaves_no_room_is_refused(files: tuple[Path, Path], port: int) -> None:
    with pytest.raises(StartRefused, match=f"PORT={port}: must be from 1 to 65530, for 6 ports in a row"):
        plan(files, port=port)


def test_the_files_that_come_with_it_move_without_a_rest() -> None:
    """Whatever program of this machine they name, its default port is in them nowhere any more."""
    config = resource_directory() / "config"
    before = plan((config / "agentic/configuration.yaml", config / "knowledge_flow/configuration.yaml"))
    made = plan((config / "agentic/configuration.yaml", config / "knowledge_flow/configuration.yaml"), port=30_000)
    assert made.knowledge_flow is not None
    written = yaml.safe_dump([dict(made.agentic.content or {}), dict(made.knowledge_flow.content or {})])
    assert not [want for want in before.ports() if re.search(rf"port: {want.port}\b|:{want.port}\b", written)]
