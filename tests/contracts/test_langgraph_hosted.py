"""What hosting somebody's graph stands on: LangGraph's handler of streamed messages, its tags of nodes, its types."""

import os
import subprocess
import sys
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph._internal import _serde
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph.types import interrupt
from pydantic import BaseModel

from agentic_backend.agent.hosted.state import StateSaver
from agentic_backend.agent.interrupts import strict_serializer
from agentic_backend.testing import MemoryState


class Heard(StreamMessagesHandler):
    """What a run tells its handler, without its stream."""

    run_inline = True

    def __init__(self) -> None:
        super().__init__(lambda _chunk: None, subgraphs=True)
        self.tokens: list[str] = []
        self.nodes: list[tuple[str, list[str]]] = []
        self.failed: list[str] = []

    def on_chain_start(self, *_args: Any, tags: Any = None, metadata: Any = None, **_: Any) -> None:
        self.nodes.append(((metadata or {}).get("langgraph_node", ""), list(tags or ())))

    def on_chain_end(self, *_args: Any, **_kwargs: Any) -> None: ...

    def on_chain_error(self, error: BaseException, **_: Any) -> None:
        self.failed.append(type(error).__name__)

    def on_chat_model_start(self, *_args: Any, **_kwargs: Any) -> None: ...

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.tokens.append(str(token))

    def on_llm_end(self, *_args: Any, **_kwargs: Any) -> None: ...


def model() -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage("one two three")]))


def outer_graph() -> Any:
    """A graph within a graph, whose node invokes a model."""
    asked = model()

    async def chat(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asked.ainvoke(state["messages"])]}

    inner = StateGraph(MessagesState)
    inner.add_node("chat", chat)
    inner.add_edge(START, "chat")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    return outer.compile()


async def test_a_handler_of_this_class_makes_models_stream_and_sees_graphs_within_graphs() -> None:
    """agentic_backend/agent/hosted/watch.py is one: a model that a node merely invokes streams for it, in graphs within
    graphs, too, and LangGraph neither removes it nor runs the nodes otherwise for it."""
    heard = Heard()
    graph = outer_graph()
    modes: Any = ["updates", "values", "custom"]
    config: Any = {"callbacks": [heard]}
    parts = [
        (namespace, mode)
        async for namespace, mode, _ in graph.astream({"messages": "Hello"}, config, stream_mode=modes, subgraphs=True)
    ]
    assert "".join(heard.tokens) == "one two three"
    assert len(heard.tokens) > 1
    assert {mode for _, mode in parts} == {"updates", "values"}  # nothing of it came by the stream


async def test_a_node_is_the_chain_with_the_tag_of_its_step() -> None:
    """agentic_backend/agent/hosted/watch.py times the chains with this tag, each node once, under the name that the
    metadata has."""
    heard = Heard()
    config: Any = {"callbacks": [heard]}
    await outer_graph().ainvoke({"messages": "Hello"}, config)
    stepped = [(name, tags) for name, tags in heard.nodes if any(tag.startswith("graph:step:") for tag in tags)]
    assert [name for name, tags in stepped if "langsmith:hidden" not in tags] == ["inner", "chat"]


async def test_a_node_that_asks_a_person_is_told_as_an_error() -> None:
    """agentic_backend/agent/hosted/watch.py knows that one by its base (`GraphBubbleUp`)."""
    heard = Heard()

    def asks(_state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("Sure?"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("asks", asks)
    builder.add_edge(START, "asks")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: Any = {"callbacks": [heard], "configurable": {"thread_id": "t"}}
    await graph.ainvoke({"messages": "Hello"}, config)
    assert set(heard.failed) == {"GraphInterrupt"}


class Note(BaseModel):
    text: str


class Notes(MessagesState):
    notes: list[Note]


async def test_a_saver_is_asked_to_read_the_types_of_the_schemas_and_no_others() -> None:
    """agentic_backend/agent/hosted/state.py hands out a saver for the types that LangGraph names (`with_allowlist`), at
    each run of a graph that got its saver after it was compiled."""
    builder = StateGraph(Notes)
    builder.add_node("notes", lambda _state: {"notes": [Note(text="kept")]})
    builder.add_edge(START, "notes")
    graph = builder.compile()
    saver = graph.checkpointer = StateSaver(MemoryState())
    await graph.ainvoke({"messages": "Hello"}, {"configurable": {"thread_id": "t"}})
    assert saver.of_graph is not None
    assert saver.of_graph is not saver
    kind, data = saver.serde.dumps_typed(Note(text="kept"))
    assert saver.of_graph.serde.loads_typed((kind, data)) == Note(text="kept")
    assert not isinstance(strict_serializer().loads_typed((kind, data)), Note)


@pytest.mark.servers
def test_strict_reading_is_chosen_when_the_library_is_imported() -> None:
    """agentic_backend/__init__.py sets LANGGRAPH_STRICT_MSGPACK before anything imports LangGraph."""
    assert _serde.STRICT_MSGPACK_ENABLED
    program = "import agentic_backend.agent.hosted\nfrom langgraph._internal._serde import STRICT_MSGPACK_ENABLED as on"
    env = {name: value for name, value in os.environ.items() if not name.startswith("LANGGRAPH")}
    found = subprocess.run(
        [sys.executable, "-c", program + "\nprint(on)"], env=env, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "True"
