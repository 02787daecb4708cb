import pytest

from agentic_backend.settings import AgenticSettings
from backend_kit.settings.base import RootSection
from backend_kit.settings.load import known_keys, nested_section
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.backend_kit.settings.reference import DOCUMENT, meaning, reference


def test_the_page_says_what_the_models_say() -> None:
    assert DOCUMENT.read_text() == reference(), "run: python -m tests.backend_kit.settings.reference"


@pytest.mark.parametrize("model", [AgenticSettings, KnowledgeFlowSettings])
def test_every_key_has_a_meaning(model: type[RootSection]) -> None:
    bare = [
        ".".join(path)
        for path, section in known_keys(model)
        if nested_section(section.model_fields[path[-1]].annotation) is None and not meaning(section, path[-1])
    ]
    assert bare == []
