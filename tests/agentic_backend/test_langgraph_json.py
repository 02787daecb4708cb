"""The file in which LangGraph's own server finds its graphs, as we read it."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentic_backend.langgraph_json import ListedGraph, read_langgraph_json
from agentic_backend.settings import Ai
from backend_kit.settings import SettingsError

GRAPHS = {"agent": "./src/agent.py:graph"}


def write(folder: Path, text: str | None = None, **content: Any) -> Path:
    file = folder / "langgraph.json"
    file.write_text(json.dumps(content, indent=2) if text is None else text)
    return file


def test_graphs_directories_and_variables_are_read_and_the_rest_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "pkg/src").mkdir(parents=True)
    (tmp_path / ".env").write_text("# keys\nexport TOKEN='a b'\nPLAIN=1\n")
    described = {"path": "pkg.flow:make", "description": "Says it."}
    file = write(
        tmp_path,
        graphs=GRAPHS | {"flow": described},
        dependencies=[".", "./pkg", "langgraph>=1", "pydantic[email]"],
        env=".env",
        python_version="3.12",
        store={"index": {}},
    )
    listed = read_langgraph_json(file)
    assert listed.graphs == (
        ListedGraph("agent", "./src/agent.py:graph"),
        ListedGraph("flow", "pkg.flow:make", "Says it."),
    )
    assert listed.paths == (tmp_path, tmp_path / "pkg", tmp_path / "pkg/src")
    assert listed.env == {"TOKEN": "a b", "PLAIN": "1"}
    assert listed.base == tmp_path


def test_variables_may_be_a_mapping(tmp_path: Path) -> None:
    assert read_langgraph_json(write(tmp_path, graphs=GRAPHS, env={"A": "b"})).env == {"A": "b"}
    assert read_langgraph_json(write(tmp_path, graphs=GRAPHS)).env == {}


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ({}, 1, "graphs: must be a mapping of names to graphs"),
        ({"dependencies": [], "graphs": {}}, 3, "graphs: must be a mapping of names to graphs"),
        ({"graphs": {"one": 3}}, 3, "graphs.one: must be package.module:name or ./path/file.py:name"),
        ({"graphs": GRAPHS, "dependencies": "."}, 5, "dependencies: must be a list"),
        ({"graphs": GRAPHS, "dependencies": [3]}, 5, "dependencies: must be a list of directories and packages"),
        ({"graphs": GRAPHS, "dependencies": ["no-such-thing>1"]}, 6, "dependencies: no-such-thing is not installed"),
        ({"graphs": GRAPHS, "dependencies": [".", "./gone"]}, 7, "gone is no directory"),
        ({"graphs": GRAPHS, "env": {"A": 1}}, 5, "env: must be a file or a mapping of names to texts"),
        ("[1]", 1, "must be a mapping"),
        ('{\n"graphs": {,}}', 2, "is not valid JSON"),
        ("[" * 100_000, 1, "is nested too deeply"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_line(content: Any, line: int, reason: str, tmp_path: Path) -> None:
    file = write(tmp_path, content) if isinstance(content, str) else write(tmp_path, **content)
    with pytest.raises(SettingsError) as raised:
        read_langgraph_json(file)
    assert str(raised.value).startswith(f"{file}:{line}: ")
    assert reason in str(raised.value)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"/langgraph\.json: cannot be read: No such file"):
        read_langgraph_json(tmp_path / "langgraph.json")
    with pytest.raises(SettingsError, match=r"/\.env: cannot be read"):
        read_langgraph_json(write(tmp_path, graphs=GRAPHS, env=".env"))


def test_its_graphs_are_agents_behind_those_of_the_configuration(tmp_path: Path) -> None:
    model = {"name": "m", "settings": {"base_url": "http://127.0.0.1:1/v1"}}
    file = write(tmp_path, graphs={"agent": {"path": "./a.py:graph", "description": "Knows all."}})
    own = {"name": "Georges"}
    ai = Ai.model_validate({"default_chat_model": model, "agents": [own], "langgraph_json": str(file)})
    georges, hosted = ai.agents
    assert (hosted.id, hosted.name, hosted.graph, hosted.graph_base) == ("agent", "agent", "./a.py:graph", tmp_path)
    assert hosted.tuning.description == "Knows all."
    assert (georges.is_own, hosted.is_own) == (True, False)
    assert Ai.model_validate(ai).agents == ai.agents
