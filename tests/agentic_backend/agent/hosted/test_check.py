"""Agents and callback handlers whose code is not the service's are tried before anything else starts."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.processes import ROOT, TRACEBACK, ForkedModule

pytestmark = pytest.mark.servers


class Ended(NamedTuple):
    """How a start ended: its exit code and what it printed."""

    code: int
    printed: str


Start = Callable[..., Ended]

GRAPH = """
from langgraph.graph import MessagesState, StateGraph

flow = StateGraph(MessagesState).add_node("say", lambda state: {}).set_entry_point("say")
"""


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts `python -m agentic_backend` on a configuration, in a directory with `agents/mine.py`.

    It must end by itself: its port is taken, so it cannot get further than that.
    """

    def started(module: str, *flags: str, **ai: Any) -> Ended:
        (tmp_path / "agents").mkdir(exist_ok=True)
        (tmp_path / "agents/mine.py").write_text(module)
        data = yaml.safe_load((ROOT / "config/agentic/configuration.yaml").read_text())
        data["ai"] |= {"agents": [{"name": "Mine", "graph": "mine"}], **ai}
        data["mcp"]["servers"] = []
        env = {"CONFIG_FILE": "configuration.yaml", "ENV_FILE": "", "MINE": "of the shell"}
        with socket.create_server(("127.0.0.1", 0)) as taken:
            data["app"] |= {"port": taken.getsockname()[1]}
            (tmp_path / "configuration.yaml").write_text(yaml.safe_dump(data))
            with ForkedModule("agentic_backend", *flags, env=env, cwd=tmp_path) as process:
                code = process.wait()
        assert TRACEBACK not in process.output
        return Ended(code, process.output)

    return started


@pytest.mark.parametrize("flags", [(), ("--check",)])
def test_an_agent_that_cannot_be_used_is_one_line_and_exit_code_2(
    flags: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    done = start(f"{GRAPH}\ngraph = flow.compile(checkpointer=3 / 0)", *flags)
    assert done.code == 2
    assert done.printed == f"agent Mine: {tmp_path}/agents/mine.py:6: ZeroDivisionError: division by zero\n"


@pytest.mark.parametrize("flags", [(), ("--check",)])
def test_a_graph_that_is_made_on_a_loop_is_tried_too(flags: tuple[str, ...], start: Start, tmp_path: Path) -> None:
    done = start(f"{GRAPH}\nasync def graph():\n    raise ValueError('no key')", *flags)
    assert done.code == 2
    assert done.printed == f"agent Mine: {tmp_path}/agents/mine.py:7: ValueError: no key\n"


def test_a_try_that_does_not_come_to_its_end_is_no_verdict_on_the_agent(start: Start) -> None:
    """Such graphs are tried in a process of their own, which a machine without memory, for instance, kills."""
    done = start(f"import os\n{GRAPH}\nasync def graph():\n    os.kill(os.getpid(), 9)")
    assert done.code == 1
    assert done.printed == "the agents could not be tried: python -m agentic_backend --check ended with -9\n"


def test_an_agent_that_can_be_used_lets_the_start_go_on(start: Start) -> None:
    assert start(f"{GRAPH}\ngraph = flow", "--check").code == 0
    done = start(f"{GRAPH}\nasync def graph():\n    return flow")
    assert done.code == 2
    assert "cannot listen on" in done.printed.splitlines()[-1]


def test_what_a_builder_needs_of_a_run_it_need_not_have_yet(start: Start) -> None:
    done = start(f"{GRAPH}\ndef graph(config):\n    return config['configurable']['user'] and flow", "--check")
    assert done.code == 0
    assert done.printed.splitlines()[-1].endswith("mine.py:7: KeyError: 'user'")


def test_an_agent_module_is_checked_with_its_settings(start: Start) -> None:
    module = "def build(settings, kit): ...\n\ndef check(settings):\n    raise ValueError('prompts.system is empty')\n"
    done = start(module, agents=[{"name": "Mine", "class_path": "mine"}])
    assert (done.code, done.printed) == (2, "agent Mine: prompts.system is empty\n")


def test_an_agent_that_is_switched_off_is_not_imported(start: Start) -> None:
    assert start("1 / 0", "--check", agents=[{"name": "Mine", "graph": "mine", "enabled": False}]).code == 0


def test_variables_of_a_langgraph_json_are_there_when_its_graphs_are_imported(start: Start, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/flow.py").write_text(
        f"import os\n{GRAPH}\ngraph = flow\nraise SystemError(os.environ['MINE'], os.environ['THEIRS'])"
    )
    content = {
        "graphs": {"flow": "./app/flow.py:graph"},
        "dependencies": ["./app"],
        "env": {"MINE": "x", "THEIRS": "y"},
    }
    (tmp_path / "langgraph.json").write_text(json.dumps(content))
    done = start("", agents=[], langgraph_json="langgraph.json")
    assert done.code == 2
    assert done.printed == f"agent flow: {tmp_path}/app/flow.py:8: SystemError: ('of the shell', 'y')\n"


@pytest.mark.parametrize("workers", [1, 2])  # several are tried by `--check`
def test_a_callback_handler_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path: Path, workers: int) -> None:
    data = yaml.safe_load((ROOT / "config/agentic/configuration.yaml").read_text())
    data["tracing"] = {"callbacks": ["no_such_module:Handler"]}
    data["persistence"] = data.get("persistence", {}) | {"replicas": "many"}
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends in any case
        data["app"] |= {"port": taken.getsockname()[1], "workers": workers}
        (tmp_path / "configuration.yaml").write_text(yaml.safe_dump(data))
        env = {"CONFIG_FILE": "configuration.yaml", "ENV_FILE": ""}
        with ForkedModule("agentic_backend", env=env, cwd=tmp_path) as process:
            assert process.wait() == 2
    (line,) = process.output.strip().splitlines()
    assert line.endswith("tracing.callbacks: no_such_module:Handler cannot be made: ModuleNotFoundError")
