"""Whether somebody reads each key, and whether those that nobody reads say so."""

from typing import ClassVar

import pytest

from agentic_backend.settings import AgenticSettings
from backend_kit.settings import Section
from backend_kit.settings.base import RootSection
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.backend_kit.settings.reads import keys_of, read_by_loader, reads, sections_of
from tests.backend_kit.settings.reference import HANDED_THROUGH, meaning
from tests.checks.source import module_of, modules


@pytest.mark.parametrize("root", [AgenticSettings, KnowledgeFlowSettings])
def test_every_key_is_read_or_says_that_it_is_not(root: type[RootSection]) -> None:
    read = read_by_loader(root)
    for module in modules(root.__module__.partition(".")[0], "backend_kit"):
        read |= reads(module, sections_of(root))
    keys = keys_of(root)
    marked = {key for key in keys if HANDED_THROUGH in meaning(*key)}
    assert {keys[key] for key in keys.keys() - read - marked} == set(), "nothing reads these"
    assert {keys[key] for key in marked & read} == set(), "these are read and say that they are not"


class Tool(Section):
    name: str
    url: str = ""
    wait_s: float = 1


class Tools(Section):
    servers: tuple[Tool, ...] = ()
    first: Tool | None = None


class Sample(RootSection):
    env_named: ClassVar[dict[str, str]] = {"secret_env": "secret"}

    tools: Tools = Tools()
    secret_env: str = ""
    secret: str = ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(settings: Sample):\n return settings.secret", {"secret"}),
        ("def f(tool: 'Tool | None'):\n return tool.url", {"url"}),
        ("def f(settings: Sample):\n return [one.url for one in settings.tools.servers if one]", {"url"}),
        ("def f(settings: Sample):\n for at, one in enumerate(settings.tools.servers):\n  at(one.url)", {"url"}),
        (
            "def f(settings: Sample):\n a, b = settings.tools.first, settings\n return a.url, b.secret",
            {"secret", "url"},
        ),
        ("class A:\n def __init__(self, given: Tool):\n  self._tool = given\n def f(self):\n  self._tool.url", {"url"}),
        ("class Tools:\n def f(self):\n  return self.first.name", {"name"}),
        ("def make() -> Tool: ...\nmake().wait_s", {"wait_s"}),
        ("settings = load(Sample)\nsettings.secret", {"secret"}),
        ("def f(tool: Tool):\n return tool.model_dump()", {"name", "url", "wait_s"}),
        ("def f(tool: Other):\n return tool.url", set()),
        ("class A:\n def f(self, tool: Tool):\n  return self.url", set()),
        ("def f(tool: Tool):\n tool.url = 1", set()),
        ("def f(settings: Sample):\n return settings.tools.model_dump()", set()),
    ],
)
def test_a_read_is_found_by_what_it_is_read_from(text: str, names: set[str]) -> None:
    known = keys_of(Sample)
    assert {key[1] for key in reads(module_of(text), sections_of(Sample)) if key in known} == names


def test_the_name_of_a_variable_is_read_by_the_loader() -> None:
    assert {name for _, name in read_by_loader(Sample)} == {"secret_env"}
