import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from backend_kit.settings import SettingsError, config_hash, load
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.backend_kit.settings.typos import refusals, typos_in_file

CONFIG = Path(__file__).parents[2] / "config" / "knowledge_flow"
FILES = ["configuration.yaml", "configuration_bench.yaml", "configuration_opensearch.yaml", "configuration_prod.yaml"]
CANARY = "hunter2-canary"


def shipped(name: str, env: dict[str, str] | None = None) -> KnowledgeFlowSettings:
    return load(KnowledgeFlowSettings, CONFIG / name, env or {})


def changed(tmp_path: Path, env: dict[str, str] | None = None, **sections: Any) -> KnowledgeFlowSettings:
    """configuration.yaml with keys added to its sections, or replaced there."""
    data = yaml.safe_load((CONFIG / "configuration.yaml").read_text())
    for name, keys in sections.items():
        data[name] = {**data.get(name, {}), **keys}
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(data))
    return load(KnowledgeFlowSettings, file, env or {})


def test_each_file_loads_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert len({config_hash(shipped(name)) for name in FILES}) == len(FILES)
    assert not caplog.records


def test_the_ports_are_beside_those_of_the_agentic_service() -> None:
    for name in FILES:
        app = shipped(name).app
        assert (app.port, app.metrics_port, app.base_url) == (8111, 9111, "/knowledge-flow/v1")


def test_the_bench_file_needs_nothing_but_this_machine() -> None:
    settings = shipped("configuration_bench.yaml")
    assert settings.embedding_model.settings.base_url == "http://127.0.0.1:8099/v1"
    assert (settings.storage.postgres.host, settings.storage.postgres.port) == ("127.0.0.1", 5543)
    assert settings.storage.postgres.pool_timeout == 2.0


def test_an_opensearch_index_needs_its_cluster(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"storage\.vector_store\.type: needs storage\.opensearch$"):
        changed(tmp_path, storage={"vector_store": {"type": "opensearch"}})
    for host, secure in (("http://localhost:9200", True), ("https://localhost:9200", False)):
        with pytest.raises(
            SettingsError, match=rf"storage\.opensearch\.secure: must be {str(not secure).lower()} with"
        ):
            changed(tmp_path, storage={"opensearch": {"host": host, "secure": secure}})
    storage = {"vector_store": {"type": "opensearch"}, "opensearch": {"host": "https://localhost:9200"}}
    settings = changed(tmp_path, {"OPENSEARCH_PASSWORD": CANARY}, storage=storage)
    assert settings.storage.opensearch is not None
    assert settings.storage.opensearch.password == SecretStr(CANARY)
    assert CANARY not in f"{settings!r}{settings.model_dump_json()}"


def test_the_home_of_the_local_start_is_where_the_model_is_kept() -> None:
    assert shipped("configuration.yaml").storage.home is None
    assert shipped("configuration.yaml", {"TURNWISE_HOME": "/data"}).storage.home == "/data"


def test_a_password_for_a_cluster_that_is_not_there_changes_nothing() -> None:
    assert shipped("configuration.yaml", {"OPENSEARCH_PASSWORD": CANARY}).storage.opensearch is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"processing": {"chunk_size_chars": 200, "chunk_overlap_chars": 101}},
            r"chunk_overlap_chars: must be at most",
        ),
        ({"crossencoder_model": {"provider": "http"}}, r"crossencoder_model\.settings\.base_url: is required where"),
        ({"storage": {"vector_store": {"index": CANARY + "; drop"}}}, r"vector_store\.index: does not have the form"),
        ({"app": {"address": "0.0.0.0"}}, r"security\.user\.enabled: authentication is off"),  # noqa: S104 - refused
        (
            {"embedding_model": {"name": CANARY}},
            r"embedding_model\.name: must be all-MiniLM-L6-v2 where provider is local$",
        ),
        ({"embedding_model": {"provider": CANARY}}, r"embedding_model\.provider: must be 'local' or 'openai'$"),
        ({"app": {"metrics_port": 8111}}, r"app\.metrics_port: is app\.port: /metrics has ports of its own$"),
        (
            {"app": {"metrics_port": 8109, "workers": 3}},
            r"app\.metrics_port: with 3 workers app\.port is among its ports: /metrics has ports of its own$",
        ),
        (
            {"app": {"metrics_port": 65_534, "workers": 3}},
            r"app\.metrics_port: 3 workers need as many ports from here on, up to 65535$",
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        changed(tmp_path, **changes)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "app",
    [
        {"metrics_port": 8112, "workers": 3},
        {"metrics_port": 8108, "workers": 3},
        {"metrics_port": 8111, "metrics_enabled": False},
        {"metrics_port": 8111, "metrics_address": "127.0.0.2"},
        {"metrics_port": 65_535},
    ],
)
def test_ports_that_do_not_meet_are_taken(tmp_path: Path, app: dict[str, Any]) -> None:
    assert changed(tmp_path, app=app).app.metrics_port == app["metrics_port"]


@pytest.mark.servers
@pytest.mark.skipif(os.getuid() != 0, reason="only root may become a user that nobody knows")
def test_a_user_without_a_home_is_told_to_name_one() -> None:
    """As in a container that is run under a number."""
    file = CONFIG / "configuration.yaml"

    def check(**env: str) -> tuple[int, str]:
        done = subprocess.run(
            ["setpriv", "--reuid=4123456", "--clear-groups", "--inh-caps=+dac_read_search",
             "--ambient-caps=+dac_read_search", sys.executable, "-m", "knowledge_flow_backend", "--check"],
            env={"PATH": os.defpath, "CONFIG_FILE": str(file), **env},
            cwd=CONFIG.parents[1], capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stderr

    code, said = check()
    assert code == 2
    assert "storage.home: is not set, and this user has no home directory: set it, or TURNWISE_HOME\n" in said
    assert said.count("\n") == 1
    assert check(TURNWISE_HOME="/data") == (0, "")


def test_every_typo_of_every_key_is_refused_with_the_right_suggestion(tmp_path: Path) -> None:
    assert refusals(KnowledgeFlowSettings, tmp_path) == []


@pytest.mark.parametrize("name", FILES)
def test_every_typo_in_a_shipped_file_is_refused_at_its_line(tmp_path: Path, name: str) -> None:
    assert typos_in_file(KnowledgeFlowSettings, CONFIG / name, tmp_path, {}) == []
