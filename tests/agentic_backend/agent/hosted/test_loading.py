"""Which graphs a configuration may name, and the line that says why one cannot be used."""

import re
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from agentic_backend.agent.hosted.loading import GraphUnusable, LoadedGraph, import_agent, load_graph

Write = Callable[..., str]

CHAT = """
from langgraph.graph import END, START, MessagesState, StateGraph

def say(text):
    workflow = StateGraph(MessagesState)
    workflow.add_node("answer", lambda state: {"messages": [("ai", text)]})
    workflow.add_edge(START, "answer")
    workflow.add_edge("answer", END)
    return workflow
"""
_NUMBERS = count()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory on the import path; what the test imports is forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.append(str(tmp_path))
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(folder: Path) -> Write:
    """Writes a module of a name that no other test uses; returns the name."""

    def written(text: str, name: str | None = None, chat: str = CHAT) -> str:
        name = name or f"hosted_{next(_NUMBERS)}"
        file = folder / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(chat.lstrip() + dedent(text))
        return name

    return written


async def said(loaded: LoadedGraph, config: RunnableConfig | None = None) -> str:
    run: RunnableConfig = config or {"configurable": {"thread_id": "t", "user": "ada"}}
    async with loaded.for_run(run) as graph:
        state: dict[str, Any] = await graph.ainvoke({"messages": [HumanMessage("hello")]}, run)
    return str(state["messages"][-1].text)


def refusal(spec: str, base: Path | None = None) -> str:
    with pytest.raises(GraphUnusable) as raised:
        load_graph(spec, base=base)
    text = str(raised.value)
    assert "\n" not in text
    return text


async def test_a_compiled_graph_is_taken_as_it_is(write: Write) -> None:
    name = write("graph = say('compiled').compile()\nother = say('other').compile()")
    loaded = load_graph(name)
    assert loaded.static is sys.modules[name].graph
    assert not loaded.per_run
    assert await said(loaded) == "compiled"
    assert await said(load_graph(f"{name}:other")) == "other"


async def test_a_graph_that_is_not_compiled_is_compiled_once(write: Write) -> None:
    loaded = load_graph(write("graph = say('uncompiled')"))
    assert loaded.static is not None
    async with loaded.for_run({}) as graph:
        assert graph is loaded.static
    assert await said(loaded) == "uncompiled"


async def test_an_attribute_of_an_object_is_found(write: Write) -> None:
    assert await said(load_graph(write("class Agents:\n    first = say('inside')") + ":Agents.first")) == "inside"


BUILDERS = {
    "plain": "def graph():\n    calls.append(None)\n    return say('built')",
    "async": "async def graph():\n    calls.append(None)\n    return say('built').compile()",
    "object": "class Maker:\n    def __call__(self):\n        calls.append(None)\n        return say('built')\n"
    "graph = Maker()",
    "default": "def graph(text='built'):\n    calls.append(None)\n    return say(text)",
}


@pytest.mark.parametrize("builder", BUILDERS)
async def test_a_builder_without_arguments_is_called_once(builder: str, write: Write) -> None:
    name = write("calls = []\n" + BUILDERS[builder])
    loaded = load_graph(name)
    assert not loaded.per_run
    assert (loaded.static is None) == (builder == "async")
    await loaded.start()
    await loaded.start()
    assert await said(loaded) == "built"
    assert loaded.static is not None
    assert len(sys.modules[name].calls) == 1


PER_RUN = {
    "by annotation": "def graph(config: RunnableConfig):\n    return say(user(config))",
    "by a text of it": "def graph(settings: 'RunnableConfig'):\n    return say(user(settings))",
    "by name": "def graph(config=None):\n    return say(user(config))",
    "by position": "def graph(anything):\n    return say(user(anything)).compile()",
    "by keyword": "async def graph(*, config: RunnableConfig | None = None):\n    return say(user(config))",
    "behind another": "def graph(text='for ', config: RunnableConfig = None):\n    return say(user(config))",
    "partly applied": "def make(text, config):\n    return say(text + user(config)[4:])\n"
    "graph = functools.partial(make, 'for ')",
    "a method": "class Maker:\n    def make(self, config):\n        return say(user(config))\ngraph = Maker().make",
}


@pytest.mark.parametrize("builder", PER_RUN)
async def test_a_builder_with_an_argument_gets_the_configuration_of_each_run(builder: str, write: Write) -> None:
    head = "import functools\nfrom langchain_core.runnables import RunnableConfig\n"
    head += "def user(config):\n    return 'for ' + config['configurable']['user']\n"
    loaded = load_graph(write(head + PER_RUN[builder]))
    await loaded.start()
    assert loaded.per_run
    assert loaded.static is None
    assert await said(loaded, {"configurable": {"user": "ada"}}) == "for ada"
    assert await said(loaded, {"configurable": {"user": "bob"}}) == "for bob"


OPENED = """
import contextlib

log = []

@contextlib.{kind}
{prefix}def graph({arguments}):
    log.append("opened")
    try:
        yield say("inside").compile()
    finally:
        log.append("closed")
"""


@pytest.mark.parametrize(("kind", "prefix"), [("asynccontextmanager", "async "), ("contextmanager", "")])
async def test_what_a_context_manager_opens_is_closed(kind: str, prefix: str, write: Write) -> None:
    name = write(OPENED.format(kind=kind, prefix=prefix, arguments=""))
    loaded, log = load_graph(name), sys.modules[name].log
    assert log == []
    assert await said(loaded) == "inside"
    assert log == ["opened"]
    await loaded.aclose()
    assert log == ["opened", "closed"]


async def test_what_is_opened_for_a_run_is_closed_after_it(write: Write) -> None:
    name = write(OPENED.format(kind="asynccontextmanager", prefix="async ", arguments="config"))
    loaded, log = load_graph(name), sys.modules[name].log
    async with loaded.for_run({}):
        assert log == ["opened"]
    assert log == ["opened", "closed"]
    await loaded.aclose()
    assert log == ["opened", "closed"]


async def test_a_file_is_relative_to_the_one_that_names_it(write: Write, folder: Path) -> None:
    write("graph = say('from a file')", "deep.inside.weather_file")
    assert await said(load_graph("./inside/weather_file.py:graph", base=folder / "deep")) == "from a file"
    assert await said(load_graph(str(folder / "deep/inside/weather_file.py"))) == "from a file"


async def test_a_file_that_can_be_imported_is_imported_under_its_name(write: Write, folder: Path) -> None:
    name = write("runs = []\ngraph = say('once').compile()", "shared_graphs.once")
    assert load_graph("./shared_graphs/once.py", base=folder).static is load_graph(name).static


async def test_a_file_of_a_package_may_import_its_neighbours(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    package = elsewhere / "team_of_graphs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "words.py").write_text("TEXT = 'from beside'")
    (package / "agent.py").write_text(CHAT + "from .words import TEXT\ngraph = say(TEXT)")
    assert await said(load_graph("team_of_graphs/agent.py:graph", base=elsewhere)) == "from beside"


async def test_files_of_the_same_name_are_different_modules(write: Write, folder: Path) -> None:
    for number in ("1", "2"):
        write(f"graph = say('number {number}')", f"part-{number}.same_name")
    for number in ("1", "2"):
        assert await said(load_graph(f"./part-{number}/same_name.py", base=folder)) == f"number {number}"


def test_a_module_that_is_not_there_is_named() -> None:
    assert refusal("no_such_module:graph") == "no_such_module: no module no_such_module is installed or on the path"
    assert refusal("./nowhere/agent.py:graph", Path("/srv")) == "/srv/nowhere/agent.py: is not there"


def test_a_missing_import_is_told_with_the_line_that_wants_it(write: Write, folder: Path) -> None:
    inner = write("\nimport not_installed_here\n", chat="")
    outer = write(f"import json\nimport {inner}\n", chat="")
    assert refusal(outer) == f"{folder / inner}.py:2: no module not_installed_here is installed or on the path"


def test_a_name_that_a_module_does_not_have_is_told(write: Write, folder: Path) -> None:
    name = write("from langgraph.graph import NoSuchGraph\n", chat="")
    text = refusal(name)
    assert text.startswith(
        f"{folder / name}.py:1: ImportError: cannot import name 'NoSuchGraph' from 'langgraph.graph'"
    )


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("\n\n1 / 0", 3, "ZeroDivisionError: division by zero"),
        ("def ask():\n    return {}['key']\nask()", 2, "KeyError: 'key'"),
        ("import os\nos.environ['NO_SUCH_VARIABLE']", 2, "KeyError: 'NO_SUCH_VARIABLE'"),
        ("graph = (", 1, "SyntaxError: '(' was never closed"),
        ("import sys\nsys.exit(3)", 2, "it ends the program"),
        ("raise RuntimeError('two\\nlines')", 1, "RuntimeError: two lines"),
        ("import json\njson.loads('[')", 2, "JSONDecodeError: Expecting value: line 1 column 2 (char 1)"),
    ],
)
def test_what_fails_at_the_import_is_told_with_its_line(
    text: str, line: int, cause: str, write: Write, folder: Path
) -> None:
    name = write(text, chat="")
    assert refusal(name) == f"{folder / name}.py:{line}: {cause}"
    assert refusal(f"./{name}.py", folder) == f"{folder / name}.py:{line}: {cause}"


def test_what_the_module_has_instead_is_named(write: Write, folder: Path) -> None:
    name = write("app = say('x').compile()\n_hidden = 1\ntext = 'x'")
    assert refusal(name) == f"{folder / name}.py:1: has no graph: it has app, say"
    assert refusal(write("", chat="")).endswith(": has no graph: it defines nothing")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("graph = {}", "graph is a dict, neither a graph nor a function that makes one"),
        ("def graph():\n    return 3", "graph makes an int, not a graph"),
        ("def graph(settings, kit): ...", "graph(settings, kit) is an agent's: name its module by class_path"),
        ("def graph(one, two): ...", "graph requires one, two: a builder takes nothing or a run's RunnableConfig"),
        ("def graph(runtime: 'ServerRuntime'): ...", "graph takes the ServerRuntime of LangSmith's server"),
    ],
)
def test_what_is_no_graph_is_told_with_the_line_that_defines_it(
    text: str, cause: str, write: Write, folder: Path
) -> None:
    name = write("\nimport json\n" + text, chat="")
    assert refusal(name).startswith(f"{folder / name}.py:3: {cause}")


OTHER_STATES = """
from typing import TypedDict
from langgraph.func import entrypoint
from langgraph.graph import MessagesState, StateGraph

class Values(TypedDict):
    question: str
    answer: str

class Asked(TypedDict):
    topic: str

def made(state, **schemas):
    workflow = StateGraph(state, **schemas)
    workflow.add_node("one", lambda state: {})
    workflow.set_entry_point("one")
    return workflow.compile()

values = made(Values)
asked = made(MessagesState, input_schema=Asked)

@entrypoint()
def function(text):
    return text
"""


def test_a_graph_without_messages_is_refused_with_its_channels(write: Write) -> None:
    name = write(OTHER_STATES, chat="")
    assert refusal(f"{name}:values").endswith(":19: has no messages channel: its channels are answer, question")
    assert refusal(f"{name}:asked").endswith(":20: takes no messages: its input has topic")
    assert refusal(f"{name}:function").endswith(":23: has no messages channel: it has none")


async def test_what_a_builder_raises_is_told_when_it_is_called(write: Write, folder: Path) -> None:
    name = write(
        """
        def graph():
            raise ValueError("no key")

        async def later():
            raise ValueError("no key")

        def each(config):
            return say(config["configurable"]["user"]).compile().nothing
        """,
        chat=CHAT,
    )
    lines = (folder / f"{name}.py").read_text().splitlines()
    assert refusal(name) == f"{folder / name}.py:{lines.index('def graph():') + 2}: ValueError: no key"
    later, each = load_graph(f"{name}:later"), load_graph(f"{name}:each")
    with pytest.raises(GraphUnusable, match=re.escape(f".py:{lines.index('async def later():') + 2}: ValueError")):
        await later.start()
    with pytest.raises(GraphUnusable, match="KeyError: 'configurable'"):
        async with each.for_run({}):
            pass
    with pytest.raises(GraphUnusable, match="AttributeError"):
        async with each.for_run({"configurable": {"user": "ada"}}):
            pass


@pytest.mark.parametrize("spec", ["", ":graph", "module:", "module:not a name", "a b", "..", "module:graph:", "9"])
def test_a_specification_of_no_known_form_is_refused(spec: str) -> None:
    assert "must be" in refusal(spec)


def test_a_class_path_to_a_graph_says_what_to_write(write: Write, folder: Path) -> None:
    name = write("graph = say('x')")
    with pytest.raises(GraphUnusable) as raised:
        import_agent(name)
    expected = f"{folder / name}.py:1: has a graph and no build(settings, kit): write graph: {name}:graph"
    assert str(raised.value) == expected
    with pytest.raises(GraphUnusable, match="no build"):
        import_agent("json")
    assert import_agent("agentic_backend.agent.plain").__name__ == "agentic_backend.agent.plain"


def test_a_graph_that_stops_before_a_node_is_refused(write: Write) -> None:
    name = write(
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        'flow = StateGraph(MessagesState).add_node("a", lambda state: None).add_edge(START, "a")\n'
        'graph = flow.compile(interrupt_before=["a"])\n'
    )
    assert "is compiled with interrupt_before" in refusal(f"{name}:graph")
