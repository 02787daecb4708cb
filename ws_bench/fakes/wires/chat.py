"""OpenAI's chat completions."""

from typing import Any

from backend_kit.wire import dumps
from ws_bench.fakes.http import EVENTS, chunk, error_body
from ws_bench.fakes.plan import CompletionPlan, joined, with_messages


class ChatWire:
    """`POST /v1/chat/completions`; reasoning is `reasoning_content`, as DeepSeek and vLLM call it."""

    stream_type = EVENTS
    garbage = chunk(b'data: {"choices": [{"delta": garb\x00\n\n')

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Wire`."""
        request = with_messages(body)
        request["max_tokens"] = request.get("max_completion_tokens") or request.get("max_tokens")
        return request | {"thinks": True}

    def frames(self, plan: CompletionPlan) -> tuple[list[bytes], bytes]:
        """The first element also holds the event with the role; the end holds the finish reason, the usage if
        requested, and `[DONE]`."""
        head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":' % (
            dumps(plan.id_of("chatcmpl-")),
            plan.created,
            dumps(plan.model),
        )
        after = b',"finish_reason":null}]}\n\n'
        begin, end_of_delta = b'[{"index":0,"delta":{"content":', b"}"
        first = b'[{"index":0,"delta":{"role":"assistant","content":""}'
        if plan.tool:
            begin, end_of_delta = b'[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":', b"}}]}"
            first = b'[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[%b]}' % dumps(
                {"index": 0, **_tool_call(plan, "")}
            )
        if plan.thoughts:
            call, first = first, b'[{"index":0,"delta":{"role":"assistant","content":null}'
        before, after_token = head + begin, end_of_delta + after
        frames = [chunk(before + dumps(token) + after_token) for token in plan.tokens]
        if plan.thoughts:
            thinking = head + b'[{"index":0,"delta":{"reasoning_content":'
            thoughts = [chunk(thinking + dumps(token) + b"}" + after) for token in plan.thoughts]
            if plan.tool and frames:
                frames[0] = chunk(head + call + after) + frames[0]
            frames = thoughts + frames
        ending = head + b'[{"index":0,"delta":{},"finish_reason":%b}]}\n\n' % dumps(plan.finish_reason)
        if plan.with_usage:
            ending += head + b'[],"usage":%b}\n\n' % dumps(_usage(plan))
        return joined(chunk(head + first + after), frames, chunk(ending + b"data: [DONE]\n\n"))

    def whole(self, plan: CompletionPlan) -> dict[str, object]:
        """See `Wire`."""
        message: dict[str, object] = {"role": "assistant", "content": plan.text}
        if plan.tool:
            message = {"role": "assistant", "content": None, "tool_calls": [_tool_call(plan, plan.text)]}
        if plan.thoughts:
            message["reasoning_content"] = plan.thought
        return {
            "id": plan.id_of("chatcmpl-"),
            "object": "chat.completion",
            "created": plan.created,
            "model": plan.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": plan.finish_reason}],
            "usage": _usage(plan),
        }

    def error(self, message: str, status: int) -> dict[str, object]:
        """See `Wire`."""
        return openai_error(message, status)


def openai_error(message: str, status: int) -> dict[str, object]:
    """A refusal as OpenAI writes it."""
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    return error_body(message, kind)


def _usage(plan: CompletionPlan) -> dict[str, object]:
    """Token counts as OpenAI-compatible servers name them; a token is a word."""
    count = plan.answer_tokens
    usage: dict[str, object] = {
        "prompt_tokens": plan.prompt_tokens,
        "completion_tokens": count,
        "total_tokens": plan.prompt_tokens + count,
    }
    if plan.cached_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": plan.cached_tokens}
    if plan.thoughts:
        usage["completion_tokens_details"] = {"reasoning_tokens": len(plan.thoughts)}
    return usage


def _tool_call(plan: CompletionPlan, arguments: str) -> dict[str, object]:
    return {"id": plan.id_of("call_"), "type": "function", "function": {"name": plan.tool, "arguments": arguments}}
