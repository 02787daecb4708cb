"""Chat completions of the fake model: the text, its server-sent events, and when each of them goes out."""

import itertools
import random
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend_kit.wire import InvalidJson, dumps, loads
from ws_bench.fakes.answers import reply, turns_of
from ws_bench.fakes.http import Connection, chunk, error_body
from ws_bench.fakes.knobs import MAX_TOKENS, BadKnob, Knobs, knobs_of
from ws_bench.fakes.wheel import EARLY_S, Wheel

_TOKEN = re.compile(r"\s*\S+|\s+$")
_FILLER_TEXT = """
Each turn is timed phase by phase so that the log can say where the time went and who holds the loop while others wait
for their next token to come down the wire
"""
_FILLER = tuple(_FILLER_TEXT.split())
_KEPT_BYTES = 4 * 1024 * 1024
_RETRY_STATUSES = frozenset({429, 503})


@dataclass(slots=True)
class Stats:
    """What the fake model did since it started, for tests and reports.

    A stream here is an accepted completion, streamed or not: open until it is finished, cut by the client, or
    truncated by its knob. A stalled one stays open until the client leaves.
    """

    chat_requests: int = 0
    embedding_requests: int = 0
    model_requests: int = 0
    refused: int = 0
    open: int = 0
    finished: int = 0
    cut: int = 0
    truncated: int = 0
    tokens: int = 0
    last: "deque[tuple[int, dict[str, Any]]]" = field(default_factory=deque)
    kept_bytes: int = 0

    def remember(self, request: Mapping[str, Any], size: int, keep: int) -> None:
        """Keep the last `keep` requests' messages, of four megabytes of bodies at most."""
        entry = {key: request.get(key) for key in ("model", "stream", "messages")}
        self.last.append((size, entry))
        self.kept_bytes += size
        while len(self.last) > keep or (self.kept_bytes > _KEPT_BYTES and self.last):
            self.kept_bytes -= self.last.popleft()[0]

    def as_json(self) -> dict[str, Any]:
        """The body of `GET /stats`."""
        last = [entry for _, entry in self.last]
        return {
            "requests": {
                "chat": self.chat_requests,
                "embeddings": self.embedding_requests,
                "models": self.model_requests,
                "refused": self.refused,
            },
            "streams": {
                "open": self.open,
                "finished": self.finished,
                "cut": self.cut,
                "truncated": self.truncated,
            },
            "tokens": self.tokens,
            "last_messages_count": len(last[-1]["messages"]) if last else 0,
            "last_requests": last,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """One completion as decided on arrival: its tokens and how they are to be sent."""

    completion_id: str
    model: str
    created: int
    tokens: Sequence[str]
    finish_reason: str
    prompt_tokens: int
    with_usage: bool

    @property
    def usage(self) -> dict[str, int]:
        """Token counts as OpenAI-compatible servers name them; a token is a word."""
        count = len(self.tokens)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self.prompt_tokens + count,
        }


class Completions:
    """Answers `POST /v1/chat/completions`: one for the server, with its knobs' defaults and its statistics."""

    def __init__(self, wheel: Wheel, stats: Stats, defaults: Knobs, *, seed: int, keep: int) -> None:
        self._wheel = wheel
        self._stats = stats
        self._defaults = defaults
        self._keep = keep
        self._random = random.Random(seed)  # noqa: S311 - draws which requests fail, not a secret
        self._numbers = itertools.count(1)

    def handle(self, body: bytes, connection: Connection) -> None:
        """Answer one request, at once or over time."""
        self._stats.chat_requests += 1
        try:
            request = parse_request(body)
            knobs = knobs_of(request["model"], self._defaults)
        except (BadRequest, BadKnob) as failure:
            self._stats.refused += 1
            connection.respond(400, error_body(str(failure), "invalid_request_error"))
            return
        self._stats.remember(request, len(body), self._keep)
        if knobs.error and self._random.random() < knobs.error:
            self._refuse(knobs.status, connection)
            return
        plan = self._plan(request, knobs)
        if not request.get("stream"):
            _Whole(plan, knobs, connection, self._stats, self._wheel).step()
        elif connection.can_stream:
            _Stream(plan, knobs, connection, self._stats, self._wheel).step()
        else:
            self._stats.refused += 1
            connection.respond(505, error_body("streams need HTTP/1.1", "invalid_request_error"))

    def _refuse(self, status: int, connection: Connection) -> None:
        self._stats.refused += 1
        kind = "rate_limit_error" if status == 429 else "server_error"
        headers = ((b"retry-after", b"1"),) if status in _RETRY_STATUSES else ()
        connection.respond(status, error_body(f"refused by the error knob with {status}", kind), headers)

    def _plan(self, request: Mapping[str, Any], knobs: Knobs) -> Plan:
        turns = turns_of(request["messages"])
        tokens = filler(knobs.tokens) if knobs.tokens else _TOKEN.findall(reply(turns))
        limit = request.get("max_completion_tokens") or request.get("max_tokens")
        cut = isinstance(limit, int) and 0 < limit < len(tokens)
        options = request.get("stream_options")
        return Plan(
            completion_id=f"chatcmpl-{next(self._numbers):012d}",
            model=request["model"],
            created=int(time.time()),
            tokens=tokens[:limit] if cut else tokens,
            finish_reason="length" if cut else "stop",
            prompt_tokens=sum(len(turn.text.split()) for turn in turns),
            with_usage=isinstance(options, dict) and options.get("include_usage") is True,
        )


class BadRequest(ValueError):
    """A body that is not a request this server understands; the text may be shown to the caller."""


def parse_request(body: bytes) -> dict[str, Any]:
    """The request with a model name and at least one message object. Raises `BadRequest`."""
    try:
        request = loads(body)
    except InvalidJson as failure:
        raise BadRequest("the body is not JSON") from failure
    if not isinstance(request, dict) or not isinstance(request.get("model"), str):
        raise BadRequest("`model` must be a string")
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise BadRequest("`messages` must be a list of at least one object")
    return request


def filler(count: int) -> list[str]:
    """A text of exactly `count` tokens: words, each with the space before it."""
    return [
        _FILLER[index % len(_FILLER)] if index == 0 else f" {_FILLER[index % len(_FILLER)]}"
        for index in range(min(count, MAX_TOKENS))
    ]


def stream_frames(plan: Plan) -> tuple[list[bytes], bytes]:
    """A completion's events as chunks of the transfer coding: one element a token, and the end.

    The first element also holds the event that names the role; the end holds the finish reason, the usage where it
    was asked for, and `[DONE]`.
    """
    head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":' % (
        dumps(plan.completion_id),
        plan.created,
        dumps(plan.model),
    )
    before, after = head + b'[{"index":0,"delta":{"content":', b'},"finish_reason":null}]}\n\n'
    frames = [chunk(before + dumps(token) + after) for token in plan.tokens]
    opening = chunk(head + b'[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n')
    ending = head + b'[{"index":0,"delta":{},"finish_reason":%b}]}\n\n' % dumps(plan.finish_reason)
    if plan.with_usage:
        ending += head + b'[],"usage":%b}\n\n' % dumps(plan.usage)
    end = chunk(ending + b"data: [DONE]\n\n")
    if frames:
        frames[0] = opening + frames[0]
        return frames, end
    return frames, opening + end


def whole_body(plan: Plan) -> dict[str, object]:
    """The body of an answer that is not streamed."""
    message = {"role": "assistant", "content": "".join(plan.tokens)}
    return {
        "id": plan.completion_id,
        "object": "chat.completion",
        "created": plan.created,
        "model": plan.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": plan.finish_reason}],
        "usage": plan.usage,
    }


def _stop_of(knobs: Knobs, tokens: int) -> tuple[int, str]:
    """After how many tokens the answer ends, and how: `finish`, `stall` or `truncate`."""
    stops = [(stop, name) for stop, name in ((knobs.stall, "stall"), (knobs.truncate, "truncate")) if stop is not None]
    stop, name = min(stops, default=(tokens + 1, "finish"))
    return (stop, name) if stop <= tokens else (tokens, "finish")


class _Answer:
    """What streamed and whole answers share: the schedule, and the count of how it ended."""

    __slots__ = ("_connection", "_ending", "_gap_s", "_last_at", "_open", "_start", "_stats", "_stop", "_wheel")

    def __init__(self, plan: Plan, knobs: Knobs, connection: Connection, stats: Stats, wheel: Wheel) -> None:
        now = wheel.time()
        self._connection = connection
        self._stats = stats
        self._wheel = wheel
        self._stop, self._ending = _stop_of(knobs, len(plan.tokens))
        self._start = now + knobs.ttft_ms / 1000
        self._gap_s = knobs.gap_ms / 1000
        self._last_at = self._start + max(self._stop - 1, 0) * self._gap_s
        if self._ending == "finish":
            self._last_at = max(self._last_at, now + knobs.floor_ms / 1000)
        self._open = True
        stats.open += 1
        connection.on_cut = self._cut

    def _cut(self) -> None:
        """The client has left."""
        self._open = False
        self._stats.open -= 1
        self._stats.cut += 1

    def _finished(self) -> None:
        self._open = False
        self._stats.open -= 1
        self._stats.finished += 1

    def _truncate(self) -> None:
        self._open = False
        self._stats.open -= 1
        self._stats.truncated += 1
        self._connection.abort()


class _Stream(_Answer):
    """One streamed completion: a cursor over its frames, moved on by the wheel."""

    __slots__ = ("_frames", "_sent")

    def __init__(self, plan: Plan, knobs: Knobs, connection: Connection, stats: Stats, wheel: Wheel) -> None:
        super().__init__(plan, knobs, connection, stats, wheel)
        frames, end = stream_frames(plan)
        frames = frames[: self._stop]
        if self._ending == "finish":
            frames = [*frames[:-1], (frames[-1] if frames else b"") + end]
        # Without a single token there is still the head of the answer to send.
        self._frames = frames or [b""]
        self._sent = 0

    def step(self) -> None:
        """Send every token that is due in one write, then come back for the next one."""
        if not self._open:
            return
        connection = self._connection
        if not connection.writable:
            connection.on_writable = self.step
            return
        frames, begin = self._frames, self._sent
        now = self._wheel.time() + EARLY_S
        sent = begin
        while sent < len(frames) and self._due(sent) <= now:
            sent += 1
        if sent > begin:
            self._sent = sent
            self._stats.tokens += min(sent, self._stop) - begin
            data = frames[begin] if sent == begin + 1 else b"".join(frames[begin:sent])
            if begin == 0:
                connection.start_stream(data)
            else:
                connection.write(data)
        if sent < len(frames):
            self._wheel.at(self._due(sent), self.step)
        elif self._ending == "finish":
            self._finished()
            connection.end_stream()
        elif self._ending == "truncate":
            self._truncate()

    def _due(self, position: int) -> float:
        return self._last_at if position == len(self._frames) - 1 else self._start + position * self._gap_s


class _Whole(_Answer):
    """One completion that is sent in one piece, when a stream of it would have ended."""

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan, knobs: Knobs, connection: Connection, stats: Stats, wheel: Wheel) -> None:
        super().__init__(plan, knobs, connection, stats, wheel)
        self._plan = plan

    def step(self) -> None:
        """Send the answer if it is due."""
        if not self._open or self._ending == "stall":
            return
        if self._last_at > self._wheel.time() + EARLY_S:
            self._wheel.at(self._last_at, self.step)
        elif self._ending == "truncate":
            self._truncate()
        else:
            self._stats.tokens += len(self._plan.tokens)
            self._finished()
            self._connection.respond(200, whole_body(self._plan))
