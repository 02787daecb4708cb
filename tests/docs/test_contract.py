"""docs/contract.md: the names that it says are kept are those of the code."""

import re

import pytest

from agentic_backend.agent import rag
from agentic_backend.agent.people import HitlPayload
from agentic_backend.session.models import Session
from agentic_backend.settings import AgenticSettings, AgentSettings, AgentTuning, FieldSpec
from backend_kit.kpi.core import PHASES
from backend_kit.settings.base import RootSection
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.backend_kit.kpi.test_summary import PUBLISHED
from tests.backend_kit.settings.reads import sections_of
from tests.docs.pages import ROOT, table

TEXT = (ROOT / "docs/contract.md").read_text()


def section(heading: str) -> str:
    """What stands below a heading, up to the next one."""
    (text,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return str(text)


def names(text: str) -> list[str]:
    """What stands in backticks and is a name."""
    return re.findall(r"`([\w.]+)`", text)


def test_the_phases_are_those_that_the_summary_begins_with() -> None:
    assert names(section("Phases")) == [*PHASES]


def test_the_lines_are_those_that_the_summary_is_tested_with() -> None:
    assert "\n".join(PUBLISHED) in section("Summary lines")


def test_the_metrics_are_in_the_table_of_all() -> None:
    documented = {
        row[0].strip("`")
        for row in table(ROOT / "docs/operations.md", "metric", "type", "labels", "summary key", "what")
    }
    kept = {name for name in names(section("Prometheus")) if name.endswith(("_ms", "_total"))}
    assert len(kept) == 10
    assert kept <= documented


def test_the_keys_of_an_agent_and_of_its_fields_are_those_of_the_settings() -> None:
    told = set(names(section("Agents")))
    assert {*AgentSettings.model_fields, *AgentTuning.model_fields, *FieldSpec.model_fields} <= told
    assert {name for name in told if name.startswith(("rag.", "prompts."))} <= {field.key for field in rag.FIELDS}


def test_the_shapes_of_a_session_and_of_a_question_are_those_of_the_wire() -> None:
    assert {*Session.new("ann", "Georges", "").wire()} <= {*names(section("Messages and sessions"))}
    assert {*HitlPayload.model_fields} <= {*names(section("Questions to a person"))}


@pytest.mark.parametrize("root", [AgenticSettings, KnowledgeFlowSettings])
def test_keys_of_fred_s_files_are_those_that_the_settings_take(root: type[RootSection]) -> None:
    told = set(names(section("Configuration files")))
    ours = {"allow_query_token", "timeout", "http_client_limits"}  # of the other service, or of the default model
    ignored = {key for each in sections_of(root) for key in each.ignored_keys if "*" not in key} - ours
    assert ignored <= {name.rpartition(".")[2] for name in told}
    assert {name.rpartition(".")[2] for name in root.renamed_keys} <= {name.rpartition(".")[2] for name in told}
