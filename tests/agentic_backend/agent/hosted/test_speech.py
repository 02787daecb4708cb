"""What a turn shows of the messages of a graph: each of them once and whole, whoever speaks at once."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from agentic_backend.agent.hosted.speech import Speech, SpokenAt
from agentic_backend.events import AgentEvent, Delta, Speaks, Step, TextEnds, Thought
from agentic_backend.llm.providers.reading import ChunkText


class Heard:
    """What is emitted, with the fragments of a text joined: `=` texts, `~` reasoning, `>` tools' calls and results."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.speakers: list[Speaks] = []
        self.speech = Speech(self.take)

    def take(self, event: AgentEvent) -> None:
        if isinstance(event, Step):
            part = event.parts[0]
            self.shown.append(f">{part.get('content', part.get('name'))}")
        elif isinstance(event, Speaks):
            self.speakers.append(event)
        elif isinstance(event, TextEnds):
            self.shown.append("|")
        elif isinstance(event, Thought):
            self._add("~", event.text)
        else:
            assert isinstance(event, Delta)
            self._add("=", event.text)

    def _add(self, mark: str, text: str) -> None:
        if self.shown and self.shown[-1].startswith(mark):
            self.shown[-1] += text
        else:
            self.shown.append(mark + text)

    def stream(self, message_id: str, *texts: str) -> None:
        for text in texts:
            self.speech.take_fragment(message_id, ChunkText(text, ""))

    @property
    def texts(self) -> list[str]:
        return [one[1:] for one in self.shown if one[0] == "="]


def calling(message_id: str, text: str = "", *names: str, **arguments: Any) -> AIMessage:
    calls = [{"name": name, "args": arguments, "id": f"{message_id}-{name}"} for name in names]
    return AIMessage(text, id=message_id, tool_calls=calls)


def result(call_id: str, text: str) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, id=f"result-{call_id}")


def test_a_text_a_call_its_result_and_the_answer() -> None:
    heard = Heard()
    heard.stream("a", "Let ", "me see.")
    heard.speech.ended("a")
    heard.speech.take(calling("a", "Let me see.", "add"))
    heard.speech.know(calling("a", "Let me see.", "add"))
    heard.speech.take(result("a-add", "5"))
    heard.stream("b", "It is ", "5.")
    heard.speech.ended("b")
    heard.speech.take(AIMessage("It is 5.", id="b"))
    assert heard.speech.answer([AIMessage("It is 5.", id="b")], {}) == "It is 5."
    assert heard.shown == ["=Let me see.", ">add", ">5", "=It is 5."]


def test_who_speaks_second_is_heard_when_the_first_has_ended_with_steps_in_their_places() -> None:
    heard = Heard()
    heard.stream("a", "One ")
    heard.stream("b", "uno ")
    heard.speech.take(result("c", "found"))
    heard.stream("a", "two")
    heard.stream("b", "dos")
    heard.speech.ended("a")
    heard.stream("b", " tres")
    heard.speech.ended("b")
    assert heard.shown == ["=One two", "|", "=uno dos tres", ">found"]


def test_what_was_streamed_under_another_id_or_wrapped_anew_is_not_shown_again() -> None:
    heard = Heard()
    heard.stream("run-1", "Hello")
    heard.speech.ended("run-1", "msg-1")
    heard.speech.take(AIMessage("Hello", id="msg-1"))
    heard.speech.take(AIMessage("Hello", id="msg-1"))
    heard.stream("c", "Well")
    heard.speech.ended("c")
    heard.speech.take(AIMessage("Well", name="worker"))
    assert heard.speech.answer([AIMessage("Well", id="w")], {}) == "Well"
    assert heard.shown == ["=Hello", "|", "=Well"]


def test_a_message_without_an_id_gets_one_so_that_it_is_known_again() -> None:
    heard = Heard()
    message = AIMessage("By hand.")
    heard.speech.take(message)
    heard.speech.take(message)
    assert heard.shown == ["=By hand."]
    assert message.id


def test_what_a_node_is_given_is_not_what_it_says() -> None:
    heard = Heard()
    old = calling("a", "Earlier.", "add")
    for message in (HumanMessage("Hello", id="h"), old):
        heard.speech.know(message)
        heard.speech.take(message)
    assert heard.shown == []


def test_of_a_known_message_the_calls_that_were_changed_are_shown() -> None:
    heard = Heard()
    heard.speech.know(calling("a", "", "add", "mul", a=2))
    changed = calling("a", "", "add", "mul", a=2)
    changed.tool_calls[1]["args"] = {"a": 3}
    heard.speech.take(changed)
    assert heard.shown == [">mul"]


def test_calls_without_ids_or_with_the_same_ones_again_are_all_shown() -> None:
    heard = Heard()
    calls = [{"name": name, "args": {}, "id": None} for name in ("add", "add")]
    heard.speech.take(AIMessage("", id="a", tool_calls=calls))
    for message_id in ("b", "c"):
        heard.speech.take(AIMessage("", id=message_id, tool_calls=[{"name": "mul", "args": {}, "id": "call_0"}]))
    assert heard.shown == [">add", ">add", ">mul", ">mul"]


def test_reasoning_stands_before_its_text_and_only_there() -> None:
    heard = Heard()
    heard.speech.take_fragment("a", ChunkText("", "Hm. "))
    heard.speech.take_fragment("b", ChunkText("", "Also hm."))
    heard.speech.take_fragment("b", ChunkText("B.", ""))
    heard.speech.take_fragment("a", ChunkText("A.", ""))
    heard.speech.ended("b")
    heard.speech.ended("a")
    assert heard.shown == ["~Hm. ", "=A.", "~Also hm.", "|", "=B."]


def test_a_model_that_its_node_left_does_not_keep_the_others_waiting() -> None:
    heard = Heard()
    heard.stream("a", "Half a")
    heard.stream("b", "Whole.")
    heard.speech.ended("b")
    assert heard.speech.answer([AIMessage("Whole.", id="b")], {}) == "Whole."
    assert heard.shown == ["=Half a", "|", "=Whole."]


def test_the_answer_is_shown_where_nobody_has_shown_it() -> None:
    heard = Heard()
    heard.stream("a", "Draft")
    heard.speech.ended("a")
    assert heard.speech.answer([AIMessage("Final", id="x")], {}) == "Final"
    assert heard.shown == ["=Draft", "|", "=Final"]


def test_an_answer_that_is_no_text_is_json_and_a_tools_result_the_answer_where_nothing_follows_it() -> None:
    heard = Heard()
    assert heard.speech.answer([calling("a", "", "Weather"), result("c", "ok")], {"structured_response": {"a": 1}}) == (
        '{"a":1}'
    )
    assert Heard().speech.answer([calling("a", "", "Weather"), result("c", "ok")], {}) == "ok"
    assert Heard().speech.answer([], {}) == ""


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], list[BaseMessage]]:
    """An order of what happens in a run whose messages overlap as they like: fragments, ends, returns. The messages
    come in the order in which the state has them."""
    count = draw(st.integers(1, 4))
    tracks: list[list[tuple[str, Any]]] = []
    messages: list[BaseMessage] = []
    for number in range(count):
        message_id = f"m{number}"
        pieces = draw(st.lists(st.sampled_from(["x", "y", "zz"]), max_size=3))
        text = f"{message_id}:" + "".join(pieces)
        names = draw(st.sampled_from([(), ("add",), ("add", "mul")]))
        message = calling(message_id, text, *names)
        if draw(st.booleans()):  # streamed, else made by its node
            track: list[tuple[str, Any]] = [("hear", (message_id, piece)) for piece in (f"{message_id}:", *pieces)]
            track.append(("ended", message_id))
            if not names and draw(st.booleans()):
                message = AIMessage(text, id=f"wrapped-{number}")
        else:
            track = []
        track += [("take", message)] * draw(st.integers(1, 2))
        messages.append(message)
        for name in names:
            found = result(f"{message_id}-{name}", f"{message_id}-{name}")
            track += [("know", message), ("take", found)]
            messages.append(found)
        tracks.append(track)
    events = []
    while any(tracks):
        track = draw(st.sampled_from([one for one in tracks if one]))
        events.append(track.pop(0))
    return events, messages


@given(graphs())
def test_however_messages_overlap_each_is_shown_once_and_whole(run: tuple[list[tuple[str, Any]], Any]) -> None:
    events, messages = run
    heard = Heard()
    for kind, about in events:
        if kind == "hear":
            heard.stream(*about)
        else:
            getattr(heard.speech, kind)(about)
    answer = heard.speech.answer(messages, {})
    last = messages[-1]
    assert answer == last.text
    assert heard.texts[-1] == answer
    # Who spoke last is not who stands last in the state where they spoke at once: then the answer is said again.
    said = [one.text for one in messages if isinstance(one, AIMessage)]
    again = 1 if isinstance(last, ToolMessage) or len(heard.texts) > len(said) else 0
    assert sorted(heard.texts[: len(heard.texts) - again]) == sorted(said)
    if again:
        assert heard.shown[-2][0] in "|>"
    steps = [one[1:] for one in heard.shown if one[0] == ">"]
    called = [call["name"] for one in messages if isinstance(one, AIMessage) for call in one.tool_calls]
    found = [one.text for one in messages if isinstance(one, ToolMessage)]
    assert sorted(steps) == sorted(called + found)
    for one in messages:
        if isinstance(one, AIMessage) and one.tool_calls:
            # A message's calls come after its text, and its results after its calls.
            place = heard.shown.index(f"={one.text}")
            assert all(heard.shown.index(f">{one.id}-{call['name']}") > place for call in one.tool_calls)


def test_each_text_and_step_says_whose_it_is_and_where_it_was_said() -> None:
    heard, inner = Heard(), SpokenAt("think", 3, ("team:1",))
    steps: list[Step] = []
    speech = Speech(lambda event: steps.append(event) if isinstance(event, Step) else heard.take(event))
    speech.take_fragment("run-1", ChunkText("Let me ", ""), inner)
    speech.take_fragment("run-1", ChunkText("see.", ""), inner)
    speech.ended("run-1", "msg-1")
    speech.take(calling("msg-1", "Let me see.", "add"), SpokenAt("think", 3))
    speech.take(result("msg-1-add", "5"), SpokenAt("tools", 4))
    speech.take_fragment("run-2", ChunkText("Well", ""), SpokenAt("worker", 5))
    speech.ended("run-2")
    speech.take(AIMessage("Well", id="w", name="worker"), SpokenAt("worker", 5))
    assert speech.answer([AIMessage("By hand.", id="own")], {}) == "By hand."
    assert heard.speakers == [
        Speaks("run-1", *inner),
        Speaks("msg-1", *inner),
        Speaks("run-2", "worker", 5),
        Speaks("w", "worker", 5),
        Speaks("own"),
    ]
    assert [step.metadata["extras"] for step in steps] == [
        {"message_id": "msg-1", "node": "think"},
        {"message_id": "result-msg-1-add", "node": "tools"},
    ]
