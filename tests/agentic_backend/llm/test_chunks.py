import json
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessageChunk

from agentic_backend.llm import chunks
from agentic_backend.llm.chunks import (
    BrokenChunk,
    content_of,
    finish_reason_of,
    is_token,
    parse_answer,
    usage_of,
)
from agentic_backend.llm.client import CompletionsClient
from agentic_backend.llm.endpoint import Endpoint
from agentic_backend.llm.models import chat_openai
from agentic_backend.llm.observer import TokenUse, Unobserved

NO_SESSION: Any = SimpleNamespace(timeout=aiohttp.ClientTimeout())
"""For a client that is asked nothing: a real one belongs to a loop."""


def parse_chunk(data: bytes) -> dict[str, Any]:
    return chunks.parse_chunk(data)[0]


def chunk(**delta: Any) -> bytes:
    return json.dumps({"choices": [{"delta": delta}]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"NaN",
        b'"x"',
        b"{'choices': []}",
        b"[" * 100_000,
        b'{"choices": 1}',
        b'{"choices": {}}',
        b'{"choices": [1]}',
        b'{"choices": [{"delta": []}]}',
        b'{"choices": [{"delta": {}, "finish_reason": 1}]}',
        b'{"choices": [{"delta": {}, "logprobs": []}]}',
        b'{"usage": []}',
        b'{"usage": {"prompt_tokens": "3"}}',
        b'{"usage": {"prompt_tokens": -3}}',
        b'{"usage": {"prompt_tokens_details": 3}}',
        b'{"usage": {"prompt_tokens_details": {"cached_tokens": "1"}}}',
        chunk(content=1),
        chunk(content=["a"]),
        chunk(content="a", role="user"),
        chunk(content="a", id=1),
        chunk(tool_calls=1),
        chunk(tool_calls=[1]),
        chunk(tool_calls=[{"function": None}]),
        chunk(tool_calls=[{"function": {"name": 1}}]),
        chunk(tool_calls=[{"function": {}, "index": "0"}]),
        b'{"choices": [{"delta": {"content": "\xe2\x82"}}]}',
    ],
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenChunk):
        parse_chunk(data)


def test_text_role_usage_and_reason_are_read() -> None:
    assert content_of(parse_chunk(chunk(content="a"))) == "a"
    assert content_of(parse_chunk(chunk(role="assistant", content=None))) == ""
    assert content_of(parse_chunk(b'{"choices": [{"delta": null}]}')) == ""
    assert finish_reason_of(parse_chunk(b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}')) == "stop"
    assert finish_reason_of(parse_chunk(b'{"choices": []}')) is None
    assert usage_of(parse_chunk(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}')) == TokenUse(1, 2)
    assert usage_of(parse_chunk(b'{"choices": null}')) is None


def test_a_role_alone_is_no_token() -> None:
    assert not is_token(parse_chunk(chunk(role="assistant", content="")))
    assert not is_token(parse_chunk(b'{"choices": []}'))
    assert is_token(parse_chunk(chunk(content="a")))
    assert is_token(parse_chunk(chunk(reasoning_content="hm")))
    assert is_token(parse_chunk(chunk(tool_calls=[{"function": {"name": "f"}}])))
    assert is_token(parse_chunk(b'{"choices": [{"finish_reason": "stop"}]}'))


def test_what_storage_refuses_is_replaced() -> None:
    assert content_of(parse_chunk(chunk(content="a\0b"))) == "a\ufffdb"
    assert content_of(parse_chunk(rb'{"choices": [{"delta": {"content": "a\ud83d"}}]}')) == "a\ufffd"
    assert content_of(parse_chunk(rb'{"choices": [{"delta": {"content": "\ude00 \ud83d\ude00"}}]}')) == "\ufffd 😀"
    # An escaped backslash before "ud83d" is text, not an escape.
    assert content_of(parse_chunk(rb'{"choices": [{"delta": {"content": "\\ud83d \ud83d"}}]}')) == "\\ud83d \ufffd"


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": {"content": 1}}]}']
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenChunk):
        parse_answer(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["content", "role", "id", "tool_calls", "function", "name", "arguments", "index", "function_call", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
CHOICE = st.fixed_dictionaries({}, optional={"delta": JSON, "finish_reason": JSON, "logprobs": JSON, "index": JSON})
CHUNK = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICE, max_size=2) | JSON,
        "usage": JSON,
        "model": JSON,
        "service_tier": JSON,
        "system_fingerprint": JSON,
        "type": st.just("content.delta") | JSON,
        "chunk": JSON,
    },
)


@given(st.lists(CHUNK, min_size=1, max_size=4))
def test_langchain_takes_every_chunk_that_passes(raw: list[dict[str, Any]]) -> None:
    """No answer of a model server becomes a KeyError or TypeError inside langchain-openai."""
    model = chat_openai(CompletionsClient(NO_SESSION, Endpoint("http://x/v1", "m"), Unobserved()))
    merged = None
    for one in raw:
        try:
            parsed = parse_chunk(json.dumps(one).encode())
        except BrokenChunk:
            continue
        made = model._convert_chunk_to_generation_chunk(parsed, AIMessageChunk, {})
        if made is not None:
            assert type(made.message) is AIMessageChunk
            merged = made if merged is None else merged + made
