"""Texts read by their shape are those that reading each event as an object finds, or are left to that."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_backend.llm.chunks import only_text
from agentic_backend.llm.text_shape import TextShape
from backend_kit.wire import InvalidJson, loads


def event(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return json.dumps({"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], **more}).encode()


def shape() -> TextShape:
    found = TextShape.of(event("Hello"))
    assert found is not None
    return found


def each_text(events: list[bytes]) -> list[str]:
    """The leading texts, an object for each event."""
    texts = []
    for one in events:
        try:
            text = only_text(loads(one))
        except InvalidJson:
            break
        if not text:
            break
        texts.append(text)
    return texts


@given(st.lists(st.text(max_size=6) | st.sampled_from(['"', "\\", '","', "\n", "\0", "é\U0001f600", "]", '"]'])))
def test_texts_of_one_shape_are_read_as_one(texts: list[str]) -> None:
    events = [event(text) for text in texts]
    count, text = shape().leading_text(events, 0)
    assert count == len(texts[: texts.index("")] if "" in texts else texts)
    found = each_text(events[:count])
    assert text in {"".join(found), ""}
    if len(found) == count and not any("\\" in one for one in texts):
        assert text == "".join(found)


BODIES = st.text(alphabet=list('ab"\\,[]{}:n u0d83'), min_size=1, max_size=8)


@given(st.lists(BODIES, min_size=1, max_size=5))
def test_what_is_broken_in_any_event_is_never_text(bodies: list[str]) -> None:
    whole = event("TEXT")
    events = [whole.replace(b"TEXT", body.encode()) for body in bodies]
    count, text = shape().leading_text(events, 0)
    assert count == len(events)
    if text:
        assert text == "".join(each_text(events))
        assert len(each_text(events)) == count


@pytest.mark.parametrize(
    "other",
    [
        event("x", usage={"prompt_tokens": 1}),
        event("x").replace(b'"finish_reason": null', b'"finish_reason": "stop"'),
        event("x").replace(b"c-1", b"c-2"),
        event(""),
        b"[DONE]",
        b"{}",
        event("x")[:-1],
    ],
)
def test_an_event_of_another_shape_ends_them(other: bytes) -> None:
    assert shape().leading_text([event("a"), event("b"), other, event("c")], 1) == (1, "b")


@pytest.mark.parametrize(
    "odd",
    [
        b'{"choices": []}',
        b'{"content": "x", "choices": [{"delta": {"content": "y"}}]}',
        b'{"choices": [{"delta": {"content": "y", "content": "z"}}]}',
        b'{"choices": [{"delta": {"content": "y"',
    ],
)
def test_an_event_whose_text_is_elsewhere_has_no_shape(odd: bytes) -> None:
    assert TextShape.of(odd) is None
