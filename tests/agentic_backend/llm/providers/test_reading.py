"""What stands in chunks, as different providers shape them."""

from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from agentic_backend.llm import TokenUse
from agentic_backend.llm.providers.reading import ChunkText, reason_in, storable, text_in, use_in


@pytest.mark.parametrize(
    ("content", "more", "expected"),
    [
        ("Hello", {}, ChunkText("Hello", "")),
        ("", {"additional_kwargs": {"reasoning_content": "Hm."}}, ChunkText("", "Hm.")),
        ("", {"additional_kwargs": {"reasoning_content": "Hm."}, "of": "openai"}, ChunkText("", "Hm.")),
        ("Hi", {"additional_kwargs": {"refusal": None}, "of": "openai"}, ChunkText("Hi", "")),
        ([{"type": "text", "text": "Hello", "index": 0}], {}, ChunkText("Hello", "")),
        ([{"type": "thinking", "thinking": "Hm.", "index": 0}], {"of": "anthropic"}, ChunkText("", "Hm.")),
        ([{"type": "thinking", "thinking": "", "signature": "x", "index": 0}], {"of": "anthropic"}, ChunkText("", "")),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm.", "index": 0}], "index": 0}],
            {"of": "openai"},
            ChunkText("", "Hm."),
        ),
        ([{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Hi"}], {}, ChunkText("Hi", "Hm.")),
        (
            [{"type": "reasoning_content", "reasoning_content": {"text": "Hm."}, "index": 0}],
            {"of": "bedrock_converse"},
            ChunkText("", "Hm."),
        ),
        ([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}], {}, ChunkText("", "")),
        ([], {}, ChunkText("", "")),
    ],
)
def test_text_and_reasoning(content: Any, more: dict[str, Any], expected: ChunkText) -> None:
    fields = dict(more)
    about = {"model_provider": fields.pop("of")} if "of" in fields else {}
    assert text_in(AIMessageChunk(content=content, response_metadata=about, **fields)) == expected


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({}, None),
        ({"model_provider": "openai"}, None),
        ({"finish_reason": "tool_calls"}, "tool_calls"),
        ({"finish_reason": "STOP"}, "stop"),
        ({"finish_reason": "MAX_TOKENS"}, "length"),
        ({"finish_reason": "something new"}, "other"),
        ({"stop_reason": "end_turn"}, "stop"),
        ({"stop_reason": "tool_use"}, "tool_calls"),
        ({"stop_reason": None}, None),
        ({"done_reason": "length", "done": True}, "length"),
        ({"stopReason": "end_turn"}, "stop"),
        ({"status": "completed"}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "in_progress"}, None),
    ],
)
def test_why_a_model_stopped(about: dict[str, Any], reason: str | None) -> None:
    assert reason_in(AIMessageChunk(content="", response_metadata=about)) == reason


def test_parts_of_the_tokens_are_never_more_than_all() -> None:
    usage: Any = {
        "input_tokens": 5,
        "output_tokens": 4,
        "total_tokens": 9,
        "input_token_details": {"cache_read": 7},
        "output_token_details": {"reasoning": 3},
    }
    assert use_in(AIMessageChunk(content="", usage_metadata=usage)) == TokenUse(5, 4, 5, 3)
    assert use_in(AIMessageChunk(content="")) is None


def test_only_what_cannot_be_stored_is_replaced() -> None:
    kept = ["é", {"a": "😀", "b": 1, "c": None}]
    assert storable(kept) == kept
    assert storable(["\udc00\0"]) == ["\ufffd\ufffd"]
