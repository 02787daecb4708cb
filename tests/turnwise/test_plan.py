"""What is started, by the configuration files and the environment."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from turnwise.errors import StartRefused
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


def plan(files: tuple[Path, Path], environ: dict[str, str] | None = None, *, bench: bool = False) -> Plan:
    return read_plan(*files, environ or {}, bench=bench)


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


def test_a_model_and_a_database_elsewhere_are_not_started(files: tuple[Path, Path]) -> None:
    changed(files, "storage.postgres", host="db.example")
    changed(files, "ai.default_chat_model.settings", base_url="https://model.example/v1")
    made = plan(files)
    assert (made.postgres_port, made.model_url) == (None, None)


@pytest.mark.parametrize("port", ["8000", 0, 70000, None])
def test_what_is_no_port_is_refused_with_file_and_key(files: tuple[Path, Path], port: object) -> None:
    changed(files, "app", port=port)
    with pytest.raises(StartRefused, match=r"agentic\.yaml: app\.port: must be a port number"):
        plan(files)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"nowhere\.yaml: cannot be read"):
        read_plan(tmp_path / "nowhere.yaml", tmp_path / "nowhere.yaml", {}, bench=False)
