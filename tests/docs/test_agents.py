"""docs/agents.md: its agents and the tests of them are saved as files and run, and the configuration has them.

`python -m tests.wheel` follows the page to the letter, in an empty folder with the installed wheel.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentic_backend import sdk
from tests.docs.pages import ROOT, blocks, do, steps
from tests.support.patience import PATIENCE_S
from turnwise.new import make_agent

pytestmark = pytest.mark.servers

PAGE = ROOT / "docs/agents.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which somebody has followed the page as far as nothing is started."""
    assert make_agent("word_counter", tmp_path) == 0
    for step in steps(PAGE):
        if step.mark in ("file", "add"):
            do(step, tmp_path)
    return tmp_path


def run(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ or None, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def test_the_tests_of_the_page_pass(folder: Path) -> None:
    plugins = ("-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-p", "no:schemathesis")
    done = run("pytest", "-q", *plugins, "tests", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_agents_of_the_page_can_be_started(folder: Path) -> None:
    """With its `langgraph.json`, whose variable the graph needs when it is imported."""
    environ = {"CONFIG_FILE": "agentic.yaml", "TURNWISE_LANGGRAPH_JSON": "langgraph.json"}
    done = run("agentic_backend", "--check", folder=folder, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    shutil.rmtree(folder / "agents")
    done = run("agentic_backend", "--check", folder=folder, **environ)
    assert done.returncode == 2
    assert done.stderr.startswith("agent Announcer: announcer: no module announcer is installed")


def test_the_first_agent_of_the_page_is_the_one_that_is_written(tmp_path: Path) -> None:
    make_agent("word_counter", tmp_path)
    (shown,) = (block for block in blocks(PAGE, "file") if block.name == "agents/word_counter.py")
    assert shown.text == (tmp_path / shown.name).read_text()


def test_agents_import_the_service_by_one_door() -> None:
    """Names of `agentic_backend.sdk` and `.testing` are all that the page's files use."""
    lines = [line for block in blocks(PAGE, "file") for line in block.text.splitlines() if "agentic_backend" in line]
    doors = ("from agentic_backend.sdk import ", "from agentic_backend.testing import ")
    assert [line for line in lines if not line.startswith(doors)] == []
    assert [name for name in sdk.__all__ if not hasattr(sdk, name)] == []
