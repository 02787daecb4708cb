"""A leading `<think>` block is reasoning wherever its text is cut, and nothing else is."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk

from agentic_backend.llm.thinking import ThinkBlock, reasoning_in, take_block


def read(pieces: list[str]) -> tuple[str, str]:
    """The reasoning and the text of all pieces."""
    block = ThinkBlock()
    told = [block.feed(piece) for piece in pieces] + [block.end()]
    return "".join(thought for thought, _ in told), "".join(text for _, text in told)


CASES = [
    ("Hello", "", "Hello"),
    ("", "", ""),
    ("<think>Hm</think>Hi", "Hm", "Hi"),
    ("\n <think>\nHm, so.\n</think>\n\nHi\n", "Hm, so.\n", "Hi\n"),
    ("<think>\n\n</think>\n\nHi", "", "Hi"),
    ("<think></think>", "", ""),
    ("<think>a </thin </think>b", "a </thin ", "b"),
    ("<think>a<think>b</think>c</think>", "a<think>b", "c</think>"),
    ("<think>never closed </thi", "never closed </thi", ""),
    ("<thi", "", "<thi"),
    ("<thinking>Hm</thinking>", "", "<thinking>Hm</thinking>"),
    ("Say <think>Hm</think>", "", "Say <think>Hm</think>"),
    ("  Hi", "", "  Hi"),
    (" " * 100 + "<think>Hm</think>", "", " " * 100 + "<think>Hm</think>"),
    ("<think>1</think>2<think>3</think>", "1", "2<think>3</think>"),
]


@pytest.mark.parametrize(("text", "thought", "said"), CASES)
def test_a_block_at_the_beginning_is_reasoning(text: str, thought: str, said: str) -> None:
    assert read([text]) == read(list(text)) == (thought, said)


@given(st.sampled_from(CASES), st.lists(st.integers(0, 60)))
def test_it_is_the_same_wherever_it_is_cut(case: tuple[str, str, str], cuts: list[int]) -> None:
    text, thought, said = case
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert read([text[a:b] for a, b in pairwise(places)]) == (thought, said)


def test_no_more_is_held_back_than_may_become_a_tag() -> None:
    block = ThinkBlock()
    assert block.feed("<think>so far </th") == ("so far ", "")
    assert block.feed("en ") == ("</then ", "")
    assert not block.over
    assert block.feed("x</think> Hi") == ("x", "Hi")
    assert block.over
    assert block.feed(" <think>") == ("", " <think>")


@pytest.mark.parametrize(
    ("message", "parted"),
    [
        ({"content": "<think>Hm</think>Hi"}, {"content": "Hi", "reasoning_content": "Hm"}),
        ({"content": "<think>Hm", "reasoning_content": "A. "}, {"content": "", "reasoning_content": "A. Hm"}),
        ({"content": "Hi"}, {"content": "Hi"}),
        ({"content": None}, {"content": None}),
    ],
)
def test_a_whole_message_is_parted_too(message: dict[str, Any], parted: dict[str, Any]) -> None:
    take_block(message)
    assert message == parted


@pytest.mark.parametrize(
    ("message", "thought"),
    [
        (AIMessage("Hi"), ""),
        (AIMessageChunk("", additional_kwargs={"reasoning_content": "Hm"}), "Hm"),
        (AIMessageChunk("Hi", additional_kwargs={"reasoning_content": {"a": 1}}), ""),
        (AIMessage([{"type": "reasoning", "reasoning": "Hm"}, {"type": "text", "text": "Hi"}]), "Hm"),
        (AIMessage([{"type": "reasoning"}, "Hi"]), ""),
        (
            AIMessageChunk(
                [{"type": "thinking", "thinking": "Hm", "index": 0}], response_metadata={"model_provider": "anthropic"}
            ),
            "Hm",
        ),
    ],
)
def test_reasoning_is_found_where_langchains_models_put_it(message: AIMessage, thought: str) -> None:
    assert reasoning_in(message) == thought
