"""The kit for authors of agents, on the agents that come with the service."""

import pytest

from agentic_backend.agent import AgentUnusable, plain, tools
from agentic_backend.errors import BadRequest, LlmTimeout, NotAwaiting, TurnFailed
from agentic_backend.events import Delta
from agentic_backend.testing import AgentBench, FakeModel, FakeToolbox, ToolFailed, says, wants


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    if a < 0:
        raise ToolFailed("only from zero on")
    return a + b


async def note(text: str) -> str:
    """Keep a note."""
    return f"kept {text}"


async def test_streams_and_remembers() -> None:
    model = FakeModel(says("Hello ", "Ada."), "You are Ada.")
    bench = AgentBench(plain, model, fields={"prompts.system": "Be kind."})
    first = await bench.ask("I am Ada")
    assert first.events == [Delta("Hello "), Delta("Ada.")]
    assert (first.text, first.question, first.phases) == ("Hello Ada.", None, ["llm_invoke"])
    assert (await bench.ask("Who am I?")).text == "You are Ada."
    assert [message.text for message in model.asked[1].messages] == [
        "Be kind.",
        "I am Ada",
        "Hello Ada.",
        "Who am I?",
    ]


async def test_gives_functions_as_tools() -> None:
    box = FakeToolbox(add, note)
    bench = AgentBench(tools, FakeModel(wants(("add", {"a": 1}), ("note", {"text": "x"})), "2"), tools=box)
    outcome = await bench.ask("1 + 1?")
    assert box.called == [("add", {"a": 1}), ("note", {"text": "x"})]
    assert sorted(str(step.parts[0].get("content")) for step in outcome.steps) == ["2", "None", "None", "kept x"]
    assert outcome.text == "2"


async def test_tells_the_model_what_the_functions_are() -> None:
    model = FakeModel("Hi")
    box = FakeToolbox(add)
    await AgentBench(tools, model, tools=box).ask("Hello")
    assert model.asked[0].tools == ("add",)
    (tool,) = (await box.offer(["tests"], None)).tools  # type: ignore[arg-type] # nobody in particular
    assert (tool.description, tool.needs_approval) == ("Add two numbers.", False)
    assert tool.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
    }


async def test_a_failed_tool_and_a_missing_server_are_answers() -> None:
    outcome = await AgentBench(tools, FakeModel(wants(("add", {"a": -1})), "no"), tools=FakeToolbox(add)).ask("?")
    assert outcome.steps[1].parts[0]["content"] == "only from zero on"
    assert outcome.steps[1].parts[0]["ok"] is False
    missing = await AgentBench(tools, FakeModel("no"), tools=FakeToolbox(missing=True)).ask("?")
    assert missing.answer is not None
    assert missing.answer.warnings == ["answered_without_tools"]


async def test_asks_a_person_before_each_call_that_needs_it() -> None:
    box = FakeToolbox(note, ask_before=["note"])
    model = FakeModel(wants(("note", {"text": "a"}), ("note", {"text": "b"})), "Done.")
    bench = AgentBench(tools, model, tools=box)
    first = await bench.ask("Note a and b")
    assert first.question is not None
    assert (first.answer, first.question["metadata"]["arguments"]) == (None, {"text": "a"})
    second = await bench.answer({"choice_id": "allow"})
    assert second.question is not None
    assert second.question["metadata"]["arguments"] == {"text": "b"}
    assert box.called == []
    last = await bench.answer({"choice_id": "deny"})
    assert last.question is None
    assert box.called == [("note", {"text": "a"})]
    assert [step.parts[0]["ok"] for step in last.steps] == [True, False]
    assert last.text == "Done."


async def test_an_answer_that_was_not_asked_for_is_a_mistake_of_the_test() -> None:
    with pytest.raises(AssertionError, match="asked nothing"):
        await AgentBench(plain, FakeModel()).answer("yes")


async def test_a_run_is_claimed_once() -> None:
    bench = AgentBench(
        tools, FakeModel(wants(("note", {"text": "a"})), "x"), tools=FakeToolbox(note, ask_before=["note"])
    )
    await bench.ask("Note a")
    await bench.answer({"choice_id": "allow"})
    with pytest.raises(NotAwaiting):
        await bench.answer({"choice_id": "allow"})


async def test_fails_as_the_script_says_and_at_its_end() -> None:
    with pytest.raises(LlmTimeout):
        await AgentBench(plain, FakeModel(LlmTimeout())).ask("Hi")
    with pytest.raises(AssertionError, match="asked 1 times, its script has 0 answers"):
        await AgentBench(plain, FakeModel()).ask("Hi")


async def test_what_cannot_be_shown_to_a_person_fails_the_turn() -> None:
    bench = AgentBench("tests.agentic_backend.testing.asker", FakeModel())
    for payload in ("", {}, {"title": " "}, {"question": "?", "choices": [{"id": "a", "label": "A"}] * 2}, 7):
        with pytest.raises(TurnFailed, match="cannot be shown"):
            await bench.ask("ask", payload=payload)
    assert (await bench.ask("ask", payload="Really?")).question is not None


def test_an_agent_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(AgentUnusable):
        AgentBench("no.such.module", FakeModel())


async def test_a_turn_may_choose_its_model() -> None:
    default, large = FakeModel("small words", "again"), FakeModel("large words")
    bench = AgentBench("agentic_backend.agent.plain", default, further_models={"large": large})
    assert [(await bench.ask("Hi", model=model)).text for model in (None, "large", "default")] == [
        "small words",
        "large words",
        "again",
    ]
    with pytest.raises(BadRequest):
        await bench.ask("Hi", model="none")
