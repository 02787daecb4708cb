"""Anthropic's messages."""

from typing import Any, Final

from backend_kit.wire import dumps
from ws_bench.fakes.http import EVENTS, chunk
from ws_bench.fakes.plan import CompletionPlan, with_messages

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_SIGNATURE: Final = "bW9jaw=="
_RESULT: Final = "tool_result"


class MessagesWire:
    """`POST /v1/messages`; reasoning is a block of thinking, which only a request that enables it gets."""

    stream_type = EVENTS
    garbage = chunk(b'event: content_block_delta\ndata: {"type": garb\x00\n\n')

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Wire`."""
        request = with_messages(body)
        messages = [{"role": "system", "content": request["system"]}] if request.get("system") else []
        for message in request["messages"]:
            messages += _messages_of(message)
        tools = request.get("tools")
        offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        thinking = request.get("thinking")
        return {
            "model": request["model"],
            "stream": request.get("stream"),
            "messages": messages,
            "tools": [
                {"type": "function", "function": {**tool, "parameters": tool.get("input_schema")}} for tool in offered
            ],
            "max_tokens": request.get("max_tokens"),
            "thinks": isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive"),
        }

    def frames(self, plan: CompletionPlan) -> tuple[list[bytes], bytes]:
        """See `Wire`."""
        empty = _message(plan, [], None, _usage(plan, 1))
        opening = _event("message_start", message=empty) + _event("ping")
        frames: list[bytes] = []
        place = 0
        if plan.thoughts:
            opening += _begin(place, {"type": "thinking", "thinking": "", "signature": ""})
            for token in plan.thoughts:
                frames.append(opening + _delta(place, "thinking_delta", thinking=token))
                opening = b""
            opening = _delta(place, "signature_delta", signature=_SIGNATURE) + _event("content_block_stop", index=place)
            place += 1
        kind, key = ("input_json_delta", "partial_json") if plan.tool else ("text_delta", "text")
        opening += _begin(place, _tool_use(plan, {}) if plan.tool else {"type": "text", "text": ""})
        for token in plan.tokens:
            frames.append(opening + _delta(place, kind, **{key: token}))
            opening = b""
        stop = {"stop_reason": _STOPS[plan.finish_reason], "stop_sequence": None}
        end = _event("content_block_stop", index=place)
        end += _event("message_delta", delta=stop, usage=_usage(plan, plan.answer_tokens)) + _event("message_stop")
        return [chunk(frame) for frame in frames], chunk(opening + end)

    def whole(self, plan: CompletionPlan) -> dict[str, object]:
        """See `Wire`."""
        blocks: list[dict[str, object]] = []
        if plan.thoughts:
            blocks.append({"type": "thinking", "thinking": plan.thought, "signature": _SIGNATURE})
        blocks.append(_tool_use(plan, plan.arguments) if plan.tool else {"type": "text", "text": plan.text})
        return _message(plan, blocks, _STOPS[plan.finish_reason], _usage(plan, plan.answer_tokens))

    def error(self, message: str, status: int) -> dict[str, object]:
        """See `Wire`."""
        return {"type": "error", "error": {"type": _KINDS.get(status, "api_error"), "message": message}}


def _messages_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message as chat completions have it: results of tools, which are blocks of the user here, by themselves."""
    content = message.get("content")
    if not isinstance(content, list):
        return [message]
    blocks = [block for block in content if isinstance(block, dict)]
    results = [{"role": "tool", "content": block.get("content")} for block in blocks if block.get("type") == _RESULT]
    rest = [block for block in blocks if block.get("type") != _RESULT]
    return results + ([{"role": message.get("role"), "content": rest}] if rest or not results else [])


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))


def _begin(place: int, block: dict[str, object]) -> bytes:
    return _event("content_block_start", index=place, content_block=block)


def _delta(place: int, kind: str, **fields: object) -> bytes:
    return _event("content_block_delta", index=place, delta={"type": kind, **fields})


def _message(
    plan: CompletionPlan, blocks: list[dict[str, object]], stop: str | None, usage: dict[str, object]
) -> dict[str, object]:
    return {
        "id": plan.id_of("msg_"),
        "type": "message",
        "role": "assistant",
        "model": plan.model,
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(plan: CompletionPlan, written: int) -> dict[str, object]:
    """Tokens that were read from the cache are not among `input_tokens`."""
    usage: dict[str, object] = {
        "input_tokens": plan.prompt_tokens - plan.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": plan.cached_tokens,
        "output_tokens": written,
    }
    if plan.thoughts:
        usage["output_tokens_details"] = {"thinking_tokens": len(plan.thoughts)}
    return usage


def _tool_use(plan: CompletionPlan, arguments: object) -> dict[str, object]:
    return {"type": "tool_use", "id": plan.id_of("toolu_"), "name": plan.tool, "input": arguments}
