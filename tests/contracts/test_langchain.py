"""What langchain's middleware for tool approvals asks, and what it takes for an answer."""

from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agentic_backend.agent.people import answers_for, question_for

THREAD: RunnableConfig = {"configurable": {"thread_id": "t"}}
CALLS = [("send", {"to": "ann"}), ("drop", {"name": "notes"}), ("look", {})]
EDIT = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "bob"}}}


class ToolModel(GenericFakeChatModel):
    """A scripted model that may be offered tools."""

    def bind_tools(self, *_tools: Any, **_options: Any) -> "ToolModel":
        return self


def agent(ran: list[str], mode: Literal["batched", "per_call"]) -> Any:
    """An agent whose model wants all of CALLS at once; `look` needs no approval."""

    def send(to: str) -> str:
        """Send it."""
        ran.append(f"send {to}")
        return "sent"

    def drop(name: str) -> str:
        """Drop it."""
        ran.append(f"drop {name}")
        return "dropped"

    def look() -> str:
        """Look."""
        ran.append("look")
        return "looked"

    calls = [
        {"id": f"c{number}", "name": name, "args": args, "type": "tool_call"}
        for number, (name, args) in enumerate(CALLS)
    ]
    model = ToolModel(messages=iter([AIMessage("", tool_calls=calls), AIMessage("Done.")]))
    approvals = HumanInTheLoopMiddleware(
        {"send": True, "drop": {"allowed_decisions": ["approve", "reject"]}}, interrupt_mode=mode
    )
    return create_agent(model, [send, drop, look], middleware=[approvals], checkpointer=InMemorySaver())


async def asked(graph: Any) -> dict[str, Any]:
    state = await graph.ainvoke({"messages": [("user", "Go")]}, THREAD)
    return question_for([(one.id, one.value) for one in state["__interrupt__"]], "run")


async def answered(graph: Any, payload: dict[str, Any], answer: Any) -> dict[str, str]:
    """What the model is told of each call."""
    state = await graph.ainvoke(Command(resume=answers_for(payload, answer)), THREAD)
    assert "__interrupt__" not in state
    return {message.name: message.content for message in state["messages"] if isinstance(message, ToolMessage)}


async def test_one_interrupt_asks_about_all_calls_and_takes_a_decision_for_each() -> None:
    """agentic_backend/agent/people.py reads `action_requests` and `review_configs`, and answers with `decisions`."""
    ran: list[str] = []
    graph = agent(ran, "batched")
    payload = await asked(graph)
    assert payload["stage"] == "action_review"
    assert [(one["name"], one["args"]) for one in payload["action_requests"]] == CALLS[:2]
    assert {one["action_name"]: one["allowed_decisions"] for one in payload["review_configs"]} == {
        "send": ["approve", "edit", "reject", "respond"],
        "drop": ["approve", "reject"],
    }
    assert [choice["id"] for choice in payload["choices"]] == ["approve", "reject"]
    told = await answered(graph, payload, {"decisions": [EDIT, {"type": "reject", "message": "Keep them."}]})
    assert sorted(ran) == ["look", "send bob"]
    assert "Keep them." in told["drop"]


@pytest.mark.parametrize(("choice", "runs"), [("approve", ["drop notes", "look", "send ann"]), ("reject", ["look"])])
async def test_a_choice_is_taken_as_a_decision_on_each(choice: str, runs: list[str]) -> None:
    """agentic_backend/agent/people.py makes decisions of a choice."""
    ran: list[str] = []
    graph = agent(ran, "batched")
    await answered(graph, await asked(graph), {"choice_id": choice, "answer": "Not now."})
    assert sorted(ran) == runs


async def test_an_interrupt_for_each_call_takes_one_decision() -> None:
    """agentic_backend/agent/people.py tells a request about one call (`tool_approval`) from one about several."""
    ran: list[str] = []
    graph = agent(ran, "per_call")
    payload = await asked(graph)
    names = {one["action_requests"][0]["name"]: one["id"] for one in payload["questions"]}
    answers = {names["send"]: {"decisions": [EDIT]}, names["drop"]: {"choice_id": "reject", "answer": "Keep them."}}
    told = await answered(graph, payload, {"answers": answers})
    assert sorted(ran) == ["look", "send bob"]
    assert "Keep them." in told["drop"]
