"""`turnwise new agent NAME`: what it writes works, and it overwrites nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic_backend.settings import Ai
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT
from turnwise.__main__ import main
from turnwise.new import make_agent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which the command writes."""
    return tmp_path


def ai_of(folder: Path) -> Any:
    return yaml.safe_load((folder / "agentic.yaml").read_text())["ai"]


@pytest.mark.servers
def test_the_test_that_it_writes_passes_with_bare_pytest(folder: Path) -> None:
    assert make_agent("word_counter", folder) == 0
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    command += ["-p", "no:langsmith_plugin", "-p", "no:schemathesis"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.servers
def test_what_it_writes_is_formatted_and_has_no_mistake_that_a_linter_sees(folder: Path) -> None:
    assert make_agent("weather", folder) == 0
    for check in (["format", "--check"], ["check"]):
        command = [sys.executable, "-m", "ruff", *check, "--config", str(ROOT / "pyproject.toml"), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_configuration_that_it_makes_has_the_agents_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_agent("weather", folder) == 0
    assert capsys.readouterr().out.splitlines() == [
        "turnwise: wrote agents/weather.py",
        "turnwise: wrote tests/test_weather.py",
        "turnwise: wrote agentic.yaml; start with: turnwise run --config-agentic agentic.yaml",
    ]
    assert make_agent("word_counter", folder) == 0
    assert "added it to agentic.yaml" in capsys.readouterr().out
    agents = Ai.model_validate(ai_of(folder)).agents
    assert [agent.id for agent in agents] == ["word_counter", "weather", "Georges", "Rico", "Sammy"]
    assert (agents[0].name, agents[0].graph) == ("Word Counter", "word_counter:graph")


def test_the_lines_for_a_configuration_of_ones_own_are_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "agentic.yaml").write_text("ai:\n  agents:\n    - name: Mine\n")
    assert make_agent("weather", folder) == 0
    printed = capsys.readouterr().out.partition("add these lines to ai.agents of your configuration:\n")[2]
    assert [agent["graph"] for agent in yaml.safe_load(printed)] == ["weather:graph"]
    assert (folder / "agentic.yaml").read_text() == "ai:\n  agents:\n    - name: Mine\n"


@pytest.mark.parametrize("there", ["agents/weather.py", "tests/test_weather.py"])
def test_nothing_is_overwritten(there: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / there).parent.mkdir()
    (folder / there).write_text("mine")
    assert make_agent("weather", folder) == 1
    assert capsys.readouterr().err == f"turnwise: {there} is there already, and is left as it is\n"
    assert [str(file.relative_to(folder)) for file in folder.rglob("*.*")] == [there]
    assert (folder / there).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my-agent", "cannot be the name of a Python module"),
        ("1st", "cannot be the name of a Python module"),
        ("../up", "cannot be the name of a Python module"),
        ("class", "cannot be the name of a Python module"),
        ("_hidden", "cannot be the name of a Python module"),
        ("wetter_größe", "cannot be the name of a Python module"),
        ("random", "random is the name of another Python module"),
        ("langgraph", "langgraph is the name of another Python module"),
    ],
)
def test_a_name_that_could_not_be_imported_is_refused(
    name: str, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_agent(name, folder) == 1
    assert reason in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_it_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new", "--help"])
    assert ended.value.code == 0
    assert "agents/NAME.py" in capsys.readouterr().out
    assert main(["new", "agent", "my-agent"]) == 1
