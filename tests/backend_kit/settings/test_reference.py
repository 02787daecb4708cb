import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import Section, load
from backend_kit.settings.base import RootSection
from backend_kit.settings.load import known_keys, nested_section
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.backend_kit.settings.reference import DOCUMENT, meaning, page
from tests.docs.pages import Block, blocks, table

ROOTS = {"agentic": AgenticSettings, "knowledge-flow": KnowledgeFlowSettings}
EXAMPLES = blocks(DOCUMENT, "config")
_KEY = re.compile(r"`([a-z0-9_.]+)`")


def test_the_page_says_what_the_models_say() -> None:
    assert DOCUMENT.read_text() == page(), "run: python -m tests.backend_kit.settings.reference"


@pytest.mark.parametrize("model", ROOTS.values())
def test_every_key_has_a_meaning(model: type[RootSection]) -> None:
    bare = [
        ".".join(path)
        for path, section in known_keys(model)
        if nested_section(section.model_fields[path[-1]].annotation) is None and not meaning(section, path[-1])
    ]
    assert bare == []


@pytest.mark.parametrize("model", ROOTS.values())
def test_no_key_is_listed_as_ignored_that_the_section_has(model: type[RootSection]) -> None:
    sections: set[type[Section]] = {section for _, section in known_keys(model)}
    assert [(one.__name__, key) for one in sections for key in one.ignored_keys if key in one.model_fields] == []


def test_there_is_an_example_for_each_service() -> None:
    assert [block.name for block in EXAMPLES] == list(ROOTS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda block: block.name)
def test_an_example_loads_without_a_word(example: Block, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "configuration.yaml"
    file.write_text(example.text)
    load(ROOTS[example.name], file, {})
    assert not caplog.records


def test_an_example_sets_every_key_of_its_table() -> None:
    rows = table(DOCUMENT, "keys", "why")
    listed = {key for row in rows for key in _KEY.findall(row[0])}
    assert len(listed) > 20
    assert listed == {key for example in EXAMPLES for key in _set_by(yaml.safe_load(example.text), "", listed)}


def _set_by(data: dict[str, Any], prefix: str, listed: set[str]) -> set[str]:
    """The keys that a file sets, down to those that are listed."""
    found: set[str] = set()
    for name, value in data.items():
        key = prefix + name
        found |= {key} if key in listed or not isinstance(value, dict) else _set_by(value, key + ".", listed)
    return found
