"""`turnwise new agent NAME`: a first agent with a tool, a test of it, and a configuration that names it."""

import argparse
import importlib.util
import keyword
import sys
from pathlib import Path
from typing import Final

from turnwise.errors import StartRefused
from turnwise.home import checkout, resource_directory

CONFIGURATION: Final = "agentic.yaml"
"""The configuration that this command makes, and adds to; another one of that name is left as it is."""
_MADE: Final = (
    "# Made by `turnwise new agent`, which adds its agents below `agents:` as long as this line stands here.\n"
)
_AGENTS: Final = "\n  agents:\n"

AGENT: Final = '''"""TITLE answers with the configured model, which may call the tools below."""

from typing import Any

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agentic_backend.sdk import TurnModel

PROMPT = "You help with texts. Call your tools where they help. Answer in the language of the question."


@tool
def count_words(text: str) -> str:
    """Count the words of a text."""
    return f"That text has {len(text.split())} words."


TOOLS = [count_words]
model = TurnModel().bind_tools(TOOLS)


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke([SystemMessage(PROMPT), *state["messages"]])]}


flow = StateGraph(MessagesState)
flow.add_node("answer", answer)
flow.add_node("tools", ToolNode(TOOLS))
flow.add_edge(START, "answer")
flow.add_conditional_edges("answer", tools_condition)
flow.add_edge("tools", "answer")
graph = flow.compile()
'''

TEST: Final = '''"""TITLE, with a model that says what the test scripted."""

import asyncio
from pathlib import Path

from agentic_backend.testing import AgentBench, FakeModel, says, wants

GRAPH = f"{Path(__file__).parents[1]}/agents/NAME.py:graph"


def test_calls_its_tool_and_answers() -> None:
    model = FakeModel(wants(("count_words", {"text": "We ship on Monday"})), says("Four ", "words."))
    outcome = asyncio.run(AgentBench(GRAPH, model).ask('Count the words of "We ship on Monday"'))
    assert outcome.text == "Four words."
    assert [step.channel for step in outcome.steps] == ["tool_call", "tool_result"]
    assert model.asked[1].messages[-1].text == "That text has 4 words."
'''

LINES: Final = """\
    - id: NAME
      name: TITLE
      graph: NAME:graph
      starters: ['Count the words of "We ship on Monday"']
      tuning:
        role: My first agent
        description: Counts words.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnwise new` to the parser."""
    parser.add_argument("what", choices=["agent"], help="what to make")
    parser.add_argument("name", metavar="NAME", help="its name, as that of a Python module: weather, word_counter")


def run_command(options: argparse.Namespace) -> int:
    """Write the files and say what to do next. Returns 0, or 1 after saying what stands in the way."""
    return make_agent(options.name, checkout() or Path.cwd())


def make_agent(name: str, base: Path) -> int:
    """Write an agent below `base`. Returns the exit code."""
    try:
        _require_free_name(name, base)
        for file, text in ((_agent(base, name), AGENT), (_test(base, name), TEST)):
            file.parent.mkdir(exist_ok=True)
            file.write_text(_filled(text, name), encoding="utf-8")
            print(f"turnwise: wrote {file.relative_to(base)}")
        _configure(base, name)
    except StartRefused as refused:
        print(f"turnwise: {refused}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"turnwise: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _agent(base: Path, name: str) -> Path:
    return base / "agents" / f"{name}.py"


def _test(base: Path, name: str) -> Path:
    return base / "tests" / f"test_{name}.py"


def _filled(text: str, name: str) -> str:
    return text.replace("NAME", name).replace("TITLE", name.replace("_", " ").title())


def _require_free_name(name: str, base: Path) -> None:
    """Raise `StartRefused` for a name that is no module's, that another module has, or whose files are there."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise StartRefused(f"{name!r} cannot be the name of a Python module: write letters, digits and _")
    for file in (_agent(base, name), _test(base, name)):
        if file.exists():
            raise StartRefused(f"{file.relative_to(base)} is there already, and is left as it is")
    if importlib.util.find_spec(name) is not None:
        raise StartRefused(f"{name} is the name of another Python module: choose one of your own")


def _configure(base: Path, name: str) -> None:
    """Add the agent to the configuration that this command has made, or makes now; else print the lines."""
    file = base / CONFIGURATION
    lines = _filled(LINES, name)
    shipped = resource_directory() / "config" / "agentic" / "configuration.yaml"
    text = file.read_text(encoding="utf-8") if file.exists() else _MADE + shipped.read_text(encoding="utf-8")
    if not text.startswith(_MADE) or text.count(_AGENTS) != 1:
        print(f"turnwise: add these lines to ai.agents of your configuration:\n{lines}", end="")
        return
    added = "added it to" if file.exists() else "wrote"
    file.write_text(text.replace(_AGENTS, _AGENTS + lines), encoding="utf-8")
    print(f"turnwise: {added} {CONFIGURATION}; start with: turnwise run --config-agentic {CONFIGURATION}")
