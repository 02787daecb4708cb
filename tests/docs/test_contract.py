"""docs/contract.md: the names that it says are kept are those of the code."""

import re

from agentic_backend.agent import rag
from agentic_backend.agent.people import HitlPayload
from agentic_backend.session.models import Session
from agentic_backend.settings import AgentSettings, AgentTuning, FieldSpec
from backend_kit.kpi.core import FIRST_PHASES
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.backend_kit.kpi.test_summary import PUBLISHED
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
    assert names(section("Phases")) == [*FIRST_PHASES]


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


def test_keys_without_a_counterpart_are_those_that_the_settings_take() -> None:
    told = set(names(section("Configuration files")))
    assert {*KnowledgeFlowSettings.ignored_keys} <= told
