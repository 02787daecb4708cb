"""What of a request for a run counts, and how a fault in it is named."""

import pytest

from agentic_backend.errors import BadRequest, MessageTooLong, TooLarge
from agentic_backend.surfaces.langgraph.asking import expect_for_agent, graph_input
from agentic_backend.surfaces.langgraph.reading import MAX_MESSAGES, read_run

USER = {"role": "user", "content": "Hello"}
NESTED: dict = {}
for _ in range(40):
    NESTED = {"a": NESTED}


def read(*messages, most=1000, **more):
    return read_run({"assistant_id": "Georges", "input": {"messages": [*messages] or [USER]}, **more}, most)


def test_the_least_of_it_is_enough():
    run = read()
    assert (run.assistant, run.question.text, run.earlier, run.resumes, run.modes) == (
        "Georges", "Hello", (), False, ("values",)
    )  # fmt: skip
    assert (run.if_busy, run.on_disconnect, run.temporary, run.create) == ("queue", "continue", True, False)
    names = ["command", "stream_mode", "on_disconnect", "multitask_strategy", "if_not_exists", "metadata", "config"]
    assert read(**dict.fromkeys([*names, "context", "checkpoint", "webhook", "stream_subgraphs"])) == run
    assert read(feedback_keys=["a"], unknown=1) == run
    assert read(durability="async").durability == "async"


@pytest.mark.parametrize(
    "sent",
    [
        USER, {"type": "human", "content": "Hello"}, "Hello", ["user", "Hello"],
        {"role": "human", "content": [{"type": "text", "text": "Hello"}, {"type": "image_url", "image_url": {}}]},
    ],
)  # fmt: skip
def test_a_question_may_have_any_form_of_langchains(sent):
    run = read(sent)
    assert run.question.text == "Hello"
    assert run.question.message["content"] == (sent["content"] if isinstance(sent, dict) else "Hello")
    assert read_run({"assistant_id": "a", "input": {"messages": sent}}, 99).question.text == "Hello"


def test_what_stands_before_the_question_is_kept():
    run = read(
        {"role": "system", "content": "Be kind."},
        {"type": "ai", "content": "Hi", "id": "a1", "tool_calls": []},
        {"type": "tool", "content": "Skipped", "tool_call_id": "c1"},
        {"type": "human", "content": "Again", "id": "h1", "name": "ada"},
    )
    assert [(one["type"], one["id"], item.role, item.text) for one, item in run.earlier] == [
        ("system", "", "system", "Be kind."),
        ("ai", "a1", "assistant", "Hi"),
    ]
    assert (run.question.message["id"], run.question.message["name"]) == ("h1", "ada")


def test_an_answer_of_a_persons_has_no_question():
    run = read(command={"resume": {"a": 1}})
    assert (run.resumes, run.resume, run.question) == (True, {"a": 1}, None)
    assert not read(command={"resume": None}).resumes
    assert read_run({"assistant_id": "a"}, 9).question is None


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": {"checkpoint_id": "c", "checkpoint_ns": ""}},
        {"checkpoint_id": "c"},
        {"config": {"configurable": {"checkpoint_id": "c"}}},
    ],
)
def test_a_checkpoint_is_named_in_any_place(changes):
    assert read(**changes).checkpoint_id == "c"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"assistant_id": 7}, "assistant_id"),
        ({"assistant_id": None}, "assistant_id"),
        ({"input": "Hello"}, "input"),
        ({"input": {"messages": [7]}}, "input.messages[0]"),
        ({"input": {"messages": [{"role": "user", "content": 7}]}}, "input.messages[0].content"),
        ({"input": {"messages": [{"role": "user", "content": [7]}]}}, "input.messages[0].content[0]"),
        ({"input": {"messages": [{"role": "king", "content": "a"}]}}, "input.messages[0].role"),
        ({"input": {"messages": [{**USER, "id": 7}]}}, "input.messages[0].id"),
        ({"input": {"messages": [{"role": "user", "content": "a\x00"}]}}, "input"),
        ({"input": NESTED}, "input"),
        ({"stream_mode": "debug"}, "stream_mode"),
        ({"stream_mode": ["values", "events"]}, "stream_mode[1]"),
        ({"multitask_strategy": "hope"}, "multitask_strategy"),
        ({"on_disconnect": "hope"}, "on_disconnect"),
        ({"durability": "hope"}, "durability"),
        ({"webhook": "https://example.org"}, "webhook"),
        ({"after_seconds": 5}, "after_seconds"),
        ({"interrupt_before": "*"}, "interrupt_before"),
        ({"interrupt_after": ["a"]}, "interrupt_after"),
        ({"metadata": {"a": "\x00"}}, "metadata"),
        ({"command": "resume"}, "command"),
        ({"context": {"search_policy": "guess"}}, "context.search_policy"),
        ({"checkpoint": {"checkpoint_id": 7}}, "checkpoint"),
    ],
)
def test_a_fault_is_named_by_its_place(changes, field):
    with pytest.raises(BadRequest) as refusal:
        read(**changes)
    assert refusal.value.field == field


def test_what_is_too_large_is_refused():
    with pytest.raises(MessageTooLong) as long:
        read({"role": "user", "content": "a" * 11}, most=10)
    assert long.value.field == "input.messages[0].content"
    with pytest.raises(MessageTooLong) as long:
        read(command={"resume": "a" * 11}, most=10)
    assert long.value.field == "command.resume"
    with pytest.raises(TooLarge) as large:
        read(metadata={"a": "a" * 20_000})
    assert large.value.field == "metadata"
    with pytest.raises(TooLarge) as large:
        read(*[USER] * (MAX_MESSAGES + 1))
    assert large.value.field == "input.messages"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"input": {"messages": [{"role": "user", "content": " "}]}}, "input.messages[0].content"),
        ({"input": {"messages": [USER, {"role": "ai", "content": "a"}]}}, "input.messages[0]"),
        ({"input": {"messages": [USER], "files": []}}, "input.files"),
        ({"command": {"goto": "agent"}}, "command.goto"),
        ({"command": {"update": {"a": 1}}}, "command.update"),
    ],
)
def test_what_only_a_graph_can_take_is_refused_for_an_agent(changes, field):
    with pytest.raises(BadRequest) as refusal:
        expect_for_agent(read(**changes))
    assert refusal.value.field == field


def test_what_a_graph_is_asked_for():
    asked = read(USER, files=1, stream_mode=["updates", "messages-tuple"], context={"a": 1}, durability="sync")
    graph = graph_input(asked)
    assert (graph.input, graph.continues, graph.modes) == ({"messages": [USER]}, False, frozenset({"updates"}))
    assert (graph.context, graph.durability) == ({"a": 1}, "sync")
    assert graph_input(asked, needs_values=True).modes == frozenset({"updates", "values"})
    commands = {"update": {"a": 1}, "goto": ["next", {"node": "other", "input": 1}]}
    graph = graph_input(read_run({"assistant_id": "a", "command": commands}, 99))
    assert (graph.update, graph.goto, graph.continues) == ({"a": 1}, ("next", {"node": "other", "input": 1}), False)
    assert graph_input(read_run({"assistant_id": "a"}, 99), checkpoint="c").continues
    resumed = graph_input(read(command={"resume": 1, "goto": "next"}))
    assert (resumed.input, resumed.continues, resumed.goto) == (None, False, ("next",))


@pytest.mark.parametrize(
    ("command", "field"),
    [({"update": [1]}, "command.update"), ({"goto": 7}, "command.goto"), ({"goto": [{"to": "a"}]}, "command.goto")],
)
def test_a_command_that_no_graph_takes_is_refused(command, field):
    with pytest.raises(BadRequest) as refusal:
        graph_input(read(command=command))
    assert refusal.value.field == field
