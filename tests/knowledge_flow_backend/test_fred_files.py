"""Knowledge flow on a configuration file with Fred's names of the keys."""

import logging
import re
from pathlib import Path

import pytest
import yaml

from backend_kit.settings import SettingsError, load
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.knowledge_flow_backend.service import run_knowledge_flow
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database
from tests.support.processes import ROOT
from tests.support.service import merge

FILE = ROOT / "tests/support/fred/knowledge_flow.yaml"
WITHOUT_EFFECT = [
    "app.reload",
    "app.reload_dir",
    *(
        f"processing.{name}"
        for name in ("generate_summary", "use_gpu", "process_images", "default_profile", "profiles")
    ),
    "security.m2m",
    "security.rebac",
    "scheduler",
    *(f"{name}_processors" for name in ("input", "attachment", "output", "library_output")),
    "content_storage",
    "document_sources",
    "chat_model",
    "vision_model",
    "embedding_model.settings.check_embedding_ctx_length",
    "crossencoder_model.settings.online",
    "crossencoder_model.settings.local_path",
    "storage.clickhouse",
    "storage.vector_store.distance",
    "storage.vector_store.local_path",
    *(f"storage.{name}_store" for name in ("catalog", "prompt", "resource", "tag", "group", "metadata", "task")),
    "storage.kpi_store",
    "storage.log_store",
    "storage.tabular_stores",
    "mcp",
    "filesystem",
    "workspace_layout",
]


async def test_a_file_of_fred_s_starts_with_a_warning_for_each_key_without_effect(
    database: Database, mock_llm: MockModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = {
        "app": {"metrics_enabled": False},
        "embedding_model": {"settings": {"base_url": mock_llm.base_url}},
        "storage": {"postgres": database.settings()},
    }
    file = tmp_path / "fred.yaml"
    file.write_text(yaml.safe_dump(merge(yaml.safe_load(FILE.read_text()), own), sort_keys=False))
    with caplog.at_level(logging.WARNING):
        settings = load(KnowledgeFlowSettings, file, {})
    said = [re.fullmatch(rf"{file}:\d+: (\S+): has no effect here", line) for line in caplog.messages]
    assert [line and line[1] for line in said] == WITHOUT_EFFECT
    assert settings.processing.workers == 3
    assert settings.embedding_model.settings.timeout.read == 45
    assert settings.storage.vector_store.index == "their_chunks"
    async with run_knowledge_flow(settings) as running:
        assert await running.search("Is there anything?") == []


@pytest.mark.parametrize(
    ("line", "slip", "meant"),
    [
        ("  max_ingestion_workers: 3", "  max_ingestion_worker: 3", None),
        ("  use_gpu: true", "  use_gpus: true", "use_gpu"),
        ("input_processors:", "input_procesors:", "input_processors"),
        ("  tabular_stores:", "  tabluar_stores:", "tabular_stores"),
    ],
)
def test_a_slip_in_a_key_of_fred_s_is_refused_by_name(tmp_path: Path, line: str, slip: str, meant: str | None) -> None:
    rows = FILE.read_text().splitlines()
    number = rows.index(line)
    file = tmp_path / "fred.yaml"
    file.write_text("\n".join([*rows[:number], slip, *rows[number + 1 :]]))
    name = slip.strip().partition(":")[0]
    likely = r"\S+" if meant is None else meant
    with pytest.raises(SettingsError, match=rf'{file}:{number + 1}: \S*{name}: unknown key \(did you mean "{likely}"'):
        load(KnowledgeFlowSettings, file, {})
