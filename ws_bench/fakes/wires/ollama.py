"""Ollama's chat."""

from datetime import UTC, datetime
from typing import Any

from backend_kit.wire import dumps
from ws_bench.fakes.http import LINES, chunk
from ws_bench.fakes.plan import CompletionPlan, with_messages


class OllamaWire:
    """`POST /api/chat`: lines of JSON; reasoning is `thinking`, except where the request has `think: false`."""

    stream_type = LINES
    garbage = chunk(b'{"message": garb\x00\n')

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Wire`. Without `stream` the answer is streamed."""
        request = with_messages(body)
        options = request.get("options")
        limit = options.get("num_predict") if isinstance(options, dict) else None
        return request | {
            "stream": request.get("stream", True),
            "max_tokens": limit,
            "thinks": request.get("think") is not False,
        }

    def frames(self, plan: CompletionPlan) -> tuple[list[bytes], bytes]:
        """See `Wire`. A call comes in one piece, with its last token."""
        frames = [_line(plan, {"role": "assistant", "content": "", "thinking": token}) for token in plan.thoughts]
        if plan.tool:
            frames += [b""] * (len(plan.tokens) - 1) + [_line(plan, _message(plan))]
        else:
            frames += [_line(plan, {"role": "assistant", "content": token}) for token in plan.tokens]
        return frames, _line(plan, {"role": "assistant", "content": ""}, **_ending(plan))

    def whole(self, plan: CompletionPlan) -> dict[str, object]:
        """See `Wire`."""
        message = _message(plan)
        if plan.thoughts:
            message["thinking"] = plan.thought
        return {"model": plan.model, "created_at": _moment(plan), "message": message, **_ending(plan)}

    def error(self, message: str, status: int) -> dict[str, object]:  # noqa: ARG002 - of `Wire`
        """See `Wire`."""
        return {"error": message}


def _line(plan: CompletionPlan, message: dict[str, object], **ending: object) -> bytes:
    data = {"model": plan.model, "created_at": _moment(plan), "message": message, **(ending or {"done": False})}
    return chunk(dumps(data) + b"\n")


def _message(plan: CompletionPlan) -> dict[str, object]:
    if not plan.tool:
        return {"role": "assistant", "content": plan.text}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": plan.tool, "arguments": plan.arguments}}],
    }


def _moment(plan: CompletionPlan) -> str:
    return datetime.fromtimestamp(plan.created, UTC).isoformat().replace("+00:00", "Z")


def _ending(plan: CompletionPlan) -> dict[str, object]:
    """Durations are in nanoseconds."""
    return {
        "done": True,
        "done_reason": "length" if plan.finish_reason == "length" else "stop",
        "total_duration": 1_000_000,
        "load_duration": 1_000,
        "prompt_eval_count": plan.prompt_tokens,
        "prompt_eval_duration": 1_000,
        "eval_count": plan.answer_tokens,
        "eval_duration": 1_000,
    }
