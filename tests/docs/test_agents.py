"""docs/agents.md: its agent and the test of it are saved as files and run, and the configuration is one."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agentic_backend.settings import Ai
from tests.docs.pages import ROOT, blocks
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

PAGE = ROOT / "docs/agents.md"
FILES = {block.name: block.text for block in blocks(PAGE, "file")}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the files of the page."""
    for name in ("announcer", "test-announcer"):
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(FILES[name])
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    return tmp_path


def run(*arguments: str, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_the_test_of_the_page_passes(place: Path) -> None:
    done = run("pytest", "-q", "-p", "no:cacheprovider", place=place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_agent_of_the_page_is_one_of_the_configuration(place: Path) -> None:
    model = {"name": "mock", "settings": {"base_url": "http://127.0.0.1:1/v1"}}
    agents = yaml.safe_load(FILES["agents"])
    Ai.model_validate({"default_chat_model": model, "agents": agents})
    ask = (
        "import sys; sys.path.insert(0, '.');"
        "from agentic_backend.testing import AgentBench, FakeModel; AgentBench('announcer', FakeModel())"
    )
    done = subprocess.run([sys.executable, "-c", ask], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
