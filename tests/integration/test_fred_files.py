"""The agentic service on a configuration file with Fred's names of the keys."""

import logging
import re
from pathlib import Path

import pytest
import yaml

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import load
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database
from tests.support.processes import ROOT
from tests.support.service import free_spool, hear_until, merge, run_service, say

FILE = ROOT / "tests/support/fred/agentic.yaml"
WITHOUT_EFFECT = [
    "app.reload",
    "app.reload_dir",
    "scheduler",
    "security.m2m",
    "security.rebac",
    "ai.agents[0].chat_options.record_audio_files",
    "ai.agents[1].metadata",
    "ai.agents[1].mcp_servers",
    "ai.agents[2].crew",
    "ai.agents[3].tuning.mcp_servers[0].require_tools",
    *(f"mcp.servers[0].{name}" for name in ("name", "description", "sse_read_timeout", "auth_mode")),
    "storage.opensearch",
    *(f"storage.{name}_store" for name in ("agent", "mcp_servers", "session", "attachments", "history", "feedback")),
    *(f"storage.{name}_store" for name in ("task", "kpi", "log")),
    "ai.agents[1].chat_options.deep_search_delegate",
]


async def test_a_file_of_fred_s_starts_with_a_warning_for_each_key_without_effect(
    database: Database, mock_llm: MockModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = {"settings": {"base_url": mock_llm.base_url}}
    own = {
        "app": {"metrics_enabled": False},
        "ai": {"default_chat_model": model, "default_language_model": model},
        "storage": {"postgres": database.settings()},
        "persistence": {"spool_dir": free_spool(tmp_path)},
        "server": {"gc_freeze": False},
    }
    file = tmp_path / "fred.yaml"
    file.write_text(yaml.safe_dump(merge(yaml.safe_load(FILE.read_text()), own), sort_keys=False))
    with caplog.at_level(logging.WARNING):
        settings = load(AgenticSettings, file, {})
    said = [
        re.fullmatch(rf"{file}:\d+: (\S+): has no effect here(, nor in line .*)?", line) for line in caplog.messages
    ]
    assert [line and line[1] for line in said] == WITHOUT_EFFECT
    assert settings.ai.restore_max_exchanges == 7
    assert settings.ai.default_language_model is not None
    assert settings.ai.default_language_model.settings.timeout.read == 45
    assert settings.branding.name == "Ours"
    async with run_service(settings) as service:
        told = await service.get("/config/frontend_settings")
        assert told["properties"] == {"logoName": "ours", "siteDisplayName": "Ours"}
        assert told["feature_flags"] == {"enableK8Features": False, "agent_editing": True, "public_links": False}
        session_id = await service.create_session()
        async with service.compatible() as socket:
            await say(socket, session_id=session_id, agent_id="Georges", message="Hello")
            final = (await hear_until(socket, "final"))[-1]
    assert [message["role"] for message in final["messages"]] == ["user", "assistant"]
