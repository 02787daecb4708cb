"""OpenAI's responses."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from backend_kit.wire import dumps
from ws_bench.fakes.http import EVENTS, BadRequest, chunk, json_object
from ws_bench.fakes.plan import CompletionPlan, joined
from ws_bench.fakes.wires.chat import openai_error

Event = Callable[..., bytes]
_ROLES: Final = {"function_call_output": "tool", "function_call": "assistant"}


class ResponsesWire:
    """`POST /v1/responses`; reasoning is a summary, which only a request with `reasoning.summary` gets."""

    stream_type = EVENTS
    garbage = chunk(b'event: response.output_text.delta\ndata: {"type": garb\x00\n\n')

    def read(self, body: bytes) -> dict[str, Any]:
        """See `Wire`."""
        request = json_object(body, "model")
        said = request.get("input")
        items = [{"role": "user", "content": said}] if isinstance(said, str) else said
        if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
            raise BadRequest("`input` must be a text or a list of at least one object")
        messages = [message for item in items if (message := _message_of(item)) is not None]
        if isinstance(instructions := request.get("instructions"), str):
            messages.insert(0, {"role": "system", "content": instructions})
        tools = request.get("tools")
        offered = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        reasoning = request.get("reasoning")
        return {
            "model": request["model"],
            "stream": request.get("stream"),
            "messages": messages or [{"role": "user", "content": ""}],
            "tools": [{"type": "function", "function": tool} for tool in offered if tool.get("type") == "function"],
            "max_tokens": request.get("max_output_tokens"),
            "thinks": isinstance(reasoning, dict) and bool(reasoning.get("summary")),
        }

    def frames(self, plan: CompletionPlan) -> tuple[list[bytes], bytes]:
        """See `Wire`. There is no `[DONE]`: the last event has the whole response."""
        numbers = itertools.count()

        def event(kind: str, **fields: object) -> bytes:
            data = dumps({"type": kind, "sequence_number": next(numbers), **fields})
            return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

        begun = _response(plan, "in_progress", [])
        opening = event("response.created", response=begun) + event("response.in_progress", response=begun)
        items: list[dict[str, object]] = []
        frames: list[bytes] = []
        for write in [_reasoning] * bool(plan.thoughts) + [_call if plan.tool else _message]:
            *written, end = write(plan, event, len(items), items)
            # What ends an item follows its last token, in the element of the next one.
            written, opening = joined(opening, written, end)
            frames += written
        status = "incomplete" if plan.finish_reason == "length" else "completed"
        ending = opening + event(f"response.{status}", response=_response(plan, status, items))
        return [chunk(frame) for frame in frames], chunk(ending)

    def whole(self, plan: CompletionPlan) -> dict[str, object]:
        """See `Wire`."""
        items = [_reasoning_item(plan)] if plan.thoughts else []
        items.append(_call_item(plan, "completed") if plan.tool else _message_item(plan, "completed"))
        return _response(plan, "incomplete" if plan.finish_reason == "length" else "completed", items)

    def error(self, message: str, status: int) -> dict[str, object]:
        """See `Wire`."""
        return openai_error(message, status)


def _message_of(item: dict[str, Any]) -> dict[str, Any] | None:
    kind = item.get("type", "message")
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    if kind == "message":
        return {"role": item.get("role"), "content": item.get("content")}
    return {"role": "assistant", "content": None} if kind == "function_call" else None


def _response(plan: CompletionPlan, status: str, items: list[dict[str, object]]) -> dict[str, object]:
    ended = status != "in_progress"
    return {
        "id": plan.id_of("resp_"),
        "object": "response",
        "created_at": plan.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": plan.model,
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _usage(plan) if ended else None,
    }


def _usage(plan: CompletionPlan) -> dict[str, object]:
    return {
        "input_tokens": plan.prompt_tokens,
        "input_tokens_details": {"cached_tokens": plan.cached_tokens},
        "output_tokens": plan.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": len(plan.thoughts)},
        "total_tokens": plan.prompt_tokens + plan.answer_tokens,
    }


def _reasoning_item(plan: CompletionPlan) -> dict[str, object]:
    return {
        "id": plan.id_of("rs_"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": plan.thought}],
    }


def _message_item(plan: CompletionPlan, status: str) -> dict[str, object]:
    part = {"type": "output_text", "text": plan.text, "annotations": [], "logprobs": []}
    content = [part] if status == "completed" else []
    return {"id": plan.id_of("msg_"), "type": "message", "status": status, "role": "assistant", "content": content}


def _call_item(plan: CompletionPlan, status: str) -> dict[str, object]:
    return {
        "id": plan.id_of("fc_"),
        "type": "function_call",
        "status": status,
        "arguments": plan.text if status == "completed" else "",
        "call_id": plan.id_of("call_"),
        "name": plan.tool,
    }


def _reasoning(plan: CompletionPlan, event: Event, place: int, items: list[dict[str, object]]) -> Iterator[bytes]:
    """The events of the reasoning by token, and those that end it."""
    at: dict[str, object] = {"item_id": plan.id_of("rs_"), "output_index": place, "summary_index": 0}
    item, empty = _reasoning_item(plan), {"type": "summary_text", "text": ""}
    opening = event("response.output_item.added", output_index=place, item=item | {"summary": []})
    opening += event("response.reasoning_summary_part.added", part=empty, **at)
    for token in plan.thoughts:
        yield opening + event("response.reasoning_summary_text.delta", delta=token, **at)
        opening = b""
    items.append(item)
    yield (
        opening
        + event("response.reasoning_summary_text.done", text=plan.thought, **at)
        + event("response.reasoning_summary_part.done", part=empty | {"text": plan.thought}, **at)
        + event("response.output_item.done", output_index=place, item=item)
    )


def _message(plan: CompletionPlan, event: Event, place: int, items: list[dict[str, object]]) -> Iterator[bytes]:
    """The same of the text."""
    at: dict[str, object] = {"item_id": plan.id_of("msg_"), "output_index": place, "content_index": 0}
    part: dict[str, object] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    opening = event("response.output_item.added", output_index=place, item=_message_item(plan, "in_progress"))
    opening += event("response.content_part.added", part=part, **at)
    for token in plan.tokens:
        yield opening + event("response.output_text.delta", delta=token, logprobs=[], **at)
        opening = b""
    items.append(item := _message_item(plan, "completed"))
    yield (
        opening
        + event("response.output_text.done", text=plan.text, logprobs=[], **at)
        + event("response.content_part.done", part=part | {"text": plan.text}, **at)
        + event("response.output_item.done", output_index=place, item=item)
    )


def _call(plan: CompletionPlan, event: Event, place: int, items: list[dict[str, object]]) -> Iterator[bytes]:
    """The same of a call."""
    at: dict[str, object] = {"item_id": plan.id_of("fc_"), "output_index": place}
    opening = event("response.output_item.added", output_index=place, item=_call_item(plan, "in_progress"))
    for token in plan.tokens:
        yield opening + event("response.function_call_arguments.delta", delta=token, **at)
        opening = b""
    items.append(item := _call_item(plan, "completed"))
    yield (
        opening
        + event("response.function_call_arguments.done", name=plan.tool, arguments=plan.text, **at)
        + event("response.output_item.done", output_index=place, item=item)
    )
