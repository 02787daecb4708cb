"""Chat completion chunks as dicts: what langchain-openai may be handed, checked before it is."""

import re
from typing import Any, Final, NamedTuple

from agentic_backend.llm.observer import TokenUse
from backend_kit.wire import InvalidJson, loads

Chunk = dict[str, Any]
Piece = str | Chunk
"""What a stream consists of: its chunks, or of those that are nothing but text their text, and reasoning as
`Reasoning`."""
REASONING: Final = "reasoning_content"
"""Where reasoning stands in a checked delta or message, whatever the server calls it."""

DONE: Final = b"[DONE]"
_CALLED: Final = (REASONING, "reasoning")
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_cache_hit_tokens")
_NAMES: Final = ("model", "service_tier", "system_fingerprint")
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL
)


class Reasoning(str):
    """A piece of a model's reasoning, in a stream that otherwise yields plain strings."""

    __slots__ = ()


class Ending(NamedTuple):
    """What a stream says beside its text, each None where it does not: why it stopped and which model spoke, and the
    tokens `{"input_tokens", "output_tokens", "total_tokens"}`."""

    finish_reason: str | None
    model: str | None
    usage: dict[str, int] | None


class BrokenChunk(ValueError):
    """The data of an event is no chat completion chunk. The text names the field, never its value."""


def parse_chunk(data: bytes) -> tuple[Chunk, str | None]:
    """Decode and check one event's data. Raises `BrokenChunk`.

    The second value is the text of a chunk that carries nothing else, which most do; None for any other chunk.

    Checked is every field that langchain-openai reads, so that no input of a model server becomes a KeyError or
    TypeError in there. A lone surrogate (a proxy that cuts text by UTF-16 unit) and NUL, which storage refuses,
    become U+FFFD.
    """
    try:
        chunk = loads(data)
    except InvalidJson:
        chunk = _parse_repaired(data)
    text = only_text(chunk)
    if text is None:
        _check_chunk(chunk)
    return chunk, text


def only_text(chunk: Any) -> str | None:
    """The text of a chunk whose every field that langchain-openai reads is as it should be, else None.

    This is the path of nearly every token: a few look-ups in place of the full check.
    """
    try:
        choice = chunk["choices"][0]
        delta = choice["delta"]
        text = delta["content"]
        if (
            type(text) is str
            and (len(delta) == 1 or _alone(delta))
            and "\0" not in text
            and choice.get("finish_reason") is None
            and choice.get("logprobs") is None
            and chunk.get("usage") is None
            and chunk.get("error") is None
            and "type" not in chunk
        ):
            return text
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return None


def _alone(delta: dict[str, Any]) -> bool:
    """Whether nothing stands beside the text: some servers name each field that a delta could have."""
    return all(value is None for key, value in delta.items() if key != "content")


def _check_chunk(chunk: Any) -> None:
    """The full check; puts right what can be."""
    if not isinstance(chunk, dict):
        raise BrokenChunk("not an object")
    choices = chunk.get("choices")
    if choices:
        _check_choice(choices)
    elif choices is not None and choices != []:
        raise BrokenChunk("choices")
    else:
        chunk["choices"] = []
    if chunk.get("usage") is not None:
        _check_usage(chunk["usage"])
    for key in _NAMES:
        if key in chunk and not isinstance(chunk[key], str):
            del chunk[key]
    # `type` and `chunk` belong to another API, which langchain-openai recognises by them.
    chunk.pop("type", None)
    chunk.pop("chunk", None)


def parse_answer(data: bytes) -> dict[str, Any]:
    """Decode and check a whole, non-streamed answer. Raises `BrokenChunk`."""
    try:
        answer = loads(data)
    except InvalidJson:
        answer = _parse_repaired(data)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BrokenChunk("choices")
    message = choices[0].get("message")
    if not isinstance(message, dict) or not isinstance(choices[0].get("finish_reason"), str | None):
        raise BrokenChunk("message")
    _check_delta(message)
    message["role"] = "assistant"
    if answer.get("usage") is not None:
        _check_usage(answer["usage"])
    parsed = {key: answer[key] for key in _NAMES if isinstance(answer.get(key), str)}
    choice = {"index": 0, "message": message, "finish_reason": choices[0].get("finish_reason")}
    return {**parsed, "choices": [choice], "usage": answer.get("usage")}


def usage_of(answer: dict[str, Any]) -> TokenUse | None:
    """What was read and written, where a chunk or an answer says so."""
    usage = answer.get("usage")
    if not usage:
        return None
    read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    asked, answered = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    # DeepSeek counts the cached ones beside the others. They are parts: a server may count them apart.
    cached = asked.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    return TokenUse(read, written, min(cached, read), min(answered.get("reasoning_tokens") or 0, written))


def ending_of(chunk: Chunk) -> Ending | None:
    """What a chunk says beside its text, as langchain-openai would put it, or None."""
    reason, usage = finish_reason_of(chunk), chunk.get("usage")
    if not reason and usage is None:
        return None
    tokens = None
    if usage is not None:
        read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        total = usage.get("total_tokens") or read + written
        tokens = {"input_tokens": read, "output_tokens": written, "total_tokens": total}
    return Ending(reason, chunk.get("model") if reason else None, tokens)


def error_of(chunk: Chunk) -> Any:
    """What a server puts into a stream it has already begun when it fails, or None."""
    return chunk.get("error")


def content_of(chunk: Chunk) -> str:
    """The text of the chunk, empty where it carries none."""
    choices = chunk["choices"]
    delta = choices[0].get("delta") if choices else None
    return (delta.get("content") or "") if delta else ""


def reasoning_of(chunk: Chunk) -> str:
    """The reasoning in the chunk, empty where it carries none."""
    choices = chunk["choices"]
    delta = choices[0].get("delta") if choices else None
    return (delta.get(REASONING) or "") if delta else ""


def take_reasoning(chunk: Chunk) -> bool:
    """Take the reasoning out of a chunk. Whether anything is left in it but a role."""
    choice = chunk["choices"][0]
    delta = choice["delta"]
    del delta[REASONING]
    rest = any(value for key, value in delta.items() if key != "role")
    return rest or bool(choice.get("finish_reason")) or chunk.get("usage") is not None


def chunk_of(answer: dict[str, Any]) -> Chunk:
    """A whole, checked answer as the one chunk of a stream."""
    choice = answer["choices"][0]
    ended = {"index": 0, "delta": choice["message"], "finish_reason": choice["finish_reason"] or "stop"}
    return {**answer, "choices": [ended]}


def text_chunk(text: str, thought: str = "") -> Chunk:
    """A chunk of our own with a text, and with reasoning where there is any."""
    delta = {"content": text, REASONING: thought} if thought else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def is_token(chunk: Piece) -> bool:
    """Whether the chunk brings something: text, reasoning, a tool call or the end. A lone role does not."""
    if isinstance(chunk, str):
        return bool(chunk)
    if not chunk["choices"]:
        return False
    choice = chunk["choices"][0]
    delta = choice.get("delta") or {}
    return bool(choice.get("finish_reason")) or any(value for key, value in delta.items() if key != "role")


def finish_reason_of(chunk: Chunk) -> str | None:
    """Why the model stopped, on the chunk that says so."""
    choices = chunk["choices"]
    return choices[0].get("finish_reason") if choices else None


def ended(reason: str) -> Chunk:
    """A chunk of our own that ends a stream."""
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def _parse_repaired(data: bytes) -> Any:
    """Decode again with lone surrogate escapes replaced; only reached when the first attempt failed."""
    try:
        return loads(_ESCAPE.sub(_without_lone_surrogate, data))
    except InvalidJson as failure:
        raise BrokenChunk("not JSON") from failure


def _without_lone_surrogate(match: re.Match[bytes]) -> bytes:
    escape = match.group()
    lone = len(escape) == 6 and escape[1:3].lower() == b"ud" and escape[3:4].lower() in b"89abcdef"
    return rb"\ufffd" if lone else escape


def _check_choice(choices: Any) -> None:
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise BrokenChunk("choices")
    choice = choices[0]
    delta = choice.setdefault("delta", {})
    if delta is not None:
        if not isinstance(delta, dict):
            raise BrokenChunk("delta")
        _check_delta(delta)
    if not isinstance(choice.get("finish_reason"), str | None):
        raise BrokenChunk("finish_reason")
    logprobs = choice.get("logprobs")
    if logprobs is not None and not (isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list | None)):
        raise BrokenChunk("logprobs")


def _check_delta(delta: dict[str, Any]) -> None:
    if isinstance(delta.get("content"), list):
        _join_parts(delta)
    content = delta.get("content")
    if content is not None:
        if not isinstance(content, str):
            raise BrokenChunk("content")
        if "\0" in content:
            delta["content"] = content.replace("\0", "\ufffd")
    if delta.get("role", "assistant") not in ("assistant", None):
        raise BrokenChunk("role")
    if content is None or len(delta) > 1:
        _check_rare(delta)


def _check_rare(delta: dict[str, Any]) -> None:
    """The fields that most chunks do not have."""
    if not isinstance(delta.get("id"), str | None):
        raise BrokenChunk("id")
    # Superseded by tool_calls years ago; merged by langchain in ways that depend on its shape.
    delta.pop("function_call", None)
    _name_reasoning(delta)
    calls = delta.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise BrokenChunk("tool_calls")
    for call in calls:
        _check_tool_call(call)


def _name_reasoning(delta: dict[str, Any]) -> None:
    """Reasoning under its one name: some servers call it otherwise, or send it under two names."""
    said = [delta.pop(name, None) for name in _CALLED]
    text = next((one for one in said if isinstance(one, str) and one), "")
    if text:
        delta[REASONING] = text.replace("\0", "\ufffd")


def _join_parts(delta: dict[str, Any]) -> None:
    """Content in parts (Mistral's reasoning models) as text and reasoning. Parts of other types are left out."""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in delta["content"]:
        if not isinstance(part, dict):
            raise BrokenChunk("content")
        if part.get("type") == "text":
            texts.append(_text_in(part))
        elif part.get("type") == "thinking":
            inner = part.get("thinking")
            thoughts += [_text_in(one) for one in inner] if isinstance(inner, list) else [_text_in({"text": inner})]
    delta["content"] = "".join(texts)
    if thoughts:
        delta[REASONING] = "".join(thoughts)


def _text_in(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise BrokenChunk("content")
    return text


def _check_tool_call(call: Any) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise BrokenChunk("tool_calls")
    texts = (call.get("id"), function.get("name"), function.get("arguments"))
    if not all(isinstance(text, str | None) for text in texts) or type(call.setdefault("index", 0)) is not int:
        raise BrokenChunk("tool_calls")
    # Only what a function call is made of goes on; langchain keeps the rest of what it is given.
    call["function"] = {key: function.get(key) for key in ("name", "arguments")}


def _check_usage(usage: Any) -> None:
    if not isinstance(usage, dict):
        raise BrokenChunk("usage")
    for key in _COUNTS:
        _check_count(usage, key)
    for key in ("prompt_tokens_details", "completion_tokens_details"):
        details = usage.get(key)
        if details is None:
            continue
        if not isinstance(details, dict):
            raise BrokenChunk(key)
        for name in details:
            _check_count(details, name)


def _check_count(counts: dict[str, Any], key: str) -> None:
    value = counts.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise BrokenChunk(key)
