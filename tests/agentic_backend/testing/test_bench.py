"""The kit for authors of agents, on the agents that come with the service."""

import pytest

from agentic_backend.agent import AgentAnswer, AgentKit, AgentUnusable, plain, tools
from agentic_backend.agent.hosted import Hosting
from agentic_backend.errors import BadRequest, LlmTimeout, NotAwaiting, TurnFailed
from agentic_backend.events import Delta
from agentic_backend.settings import AgentSettings
from agentic_backend.testing import (
    AgentBench,
    FakeModel,
    FakeToolbox,
    MemoryState,
    MemoryStorage,
    ToolFailed,
    TurnProcess,
    says,
    session_of,
    wants,
)
from backend_kit.aio import TaskRegistry
from backend_kit.wire import loads
from tests.agentic_backend.testing import chatty


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
    with pytest.raises(TurnFailed, match="cannot be shown"):
        await bench.ask("ask", payload={"question": "x" * 17_000})
    assert (await bench.ask("ask", payload="Really?")).question is not None


async def test_what_is_no_question_of_ours_is_shown_as_it_stands() -> None:
    bench = AgentBench("tests.agentic_backend.testing.asker", FakeModel())
    for payload in ("", {}, {"question": "?", "choices": [{"id": "a", "label": "A"}] * 2}, 7):
        asked = (await bench.ask("ask", payload=payload)).question
        assert asked is not None
        assert asked["metadata"] == {"value": payload}
        assert (await bench.answer({"text": "go on"})).answer == AgentAnswer("go on")


async def test_an_answer_that_the_question_cannot_take_leaves_it_open() -> None:
    bench = AgentBench("tests.agentic_backend.testing.asker", FakeModel())
    action = {"name": "send", "args": {"to": "ann"}}
    config = {"action_name": "send", "allowed_decisions": ["approve", "reject"]}
    await bench.ask("ask", payload={"action_requests": [action], "review_configs": [config]})
    with pytest.raises(BadRequest):
        await bench.answer({"decisions": []})
    answered = await bench.answer({"choice_id": "reject", "answer": "Not now"})
    assert answered.answer == AgentAnswer(str({"decisions": [{"type": "reject", "message": "Not now"}]}))


async def test_of_two_questions_at_once_those_left_open_are_asked_again() -> None:
    bench = AgentBench("tests.agentic_backend.testing.two_askers", FakeModel())
    asked = (await bench.ask("ask")).question
    assert asked is not None
    first, second = asked["questions"]
    assert {first["question"], second["stage"]} == {"Left?", "value"}
    rest = (await bench.answer({"answers": {second["id"]: {"value": 3}}})).question
    assert rest is not None
    assert (rest["question"], rest["interrupt_id"]) == ("Left?", first["id"])
    assert "questions" not in rest
    assert (await bench.answer("yes")).answer == AgentAnswer("yes 3")

    asked = (await bench.ask("ask")).question
    assert asked is not None
    both = {one["id"]: "yes" for one in asked["questions"]}
    assert (await bench.answer({"answers": both})).answer == AgentAnswer("yes yes")

    await bench.ask("ask")
    rest = (await bench.answer("first")).question
    assert rest is not None
    assert (await bench.answer({"text": "second"})).answer == AgentAnswer("first second")


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


async def test_runs_a_graph_with_its_tools_its_state_and_its_store() -> None:
    """A bound model streams, reports its tokens, and is offered a tool, a function and a schema."""
    bench = AgentBench("tests.agentic_backend.testing.chatty:graph", FakeModel())
    model = chatty.models[-1]
    first = await bench.ask("Add 2 and 3, and note it")
    assert first.text == "It is 5."
    assert [step.channel for step in first.steps][-4:].count("tool_result") == 2
    assert model.asked[0].tools == ("add", "note", "search")
    assert [message.text for message in model.asked[1].messages[-2:]] == ["5", "kept five"]
    assert first.answer is not None
    assert first.answer.metadata["token_usage"] == {"input_tokens": 40, "output_tokens": 9, "total_tokens": 49}
    assert (await bench.ask("What did I ask?")).text == "You asked for a sum."
    assert [message.text for message in model.asked[2].messages][:2] == ["Call 3", "Add 2 and 3, and note it"]
    assert len(model.asked[2].messages) == 7
    (kept,) = bench.state.remembered.search(("user", "user"))
    assert kept.value == {"times": 3}


async def test_runs_whole_turns_over_storage_in_memory_and_a_second_process_goes_on() -> None:
    storage, tasks = MemoryStorage(session_of("Chatty")), TaskRegistry()
    agents = [AgentSettings(id="Chatty", name="Chatty", graph="tests.agentic_backend.testing.chatty:graph")]
    hosting = Hosting(MemoryState())
    first = TurnProcess(storage, tasks, agents, AgentKit(FakeModel(), "none"), hosting=hosting).ask("e1", "2 and 3")
    await first.wait_ended()
    second = TurnProcess(storage, tasks, agents, AgentKit(FakeModel(), "none"), hosting=hosting)
    await second.ask("e2", "And now?").wait_ended()
    await tasks.aclose()
    texts = [message.text for message in chatty.models[-1].asked[0].messages]
    assert texts == ["Call 3", "2 and 3", "Let me see.", "5", "kept five", "It is 5.", "And now?"]
    roles = [loads(row)["role"] for row in storage.history()]
    assert (roles.count("user"), roles.count("tool")) == (2, 4)
