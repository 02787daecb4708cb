"""Answers of the fake model: what it says, and when each token of it is sent. `wires` says how."""

import itertools
import re
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from backend_kit.wire import dumps
from ws_bench.config.distributions import RandomVariable
from ws_bench.fakes.answers import Turn, reply, turns_of
from ws_bench.fakes.http import BadRequest, Connection
from ws_bench.fakes.knobs import MAX_TOKENS, BadKnob, Knobs, draw_amount, knobs_of
from ws_bench.fakes.plan import CompletionPlan, Wire
from ws_bench.fakes.timer_wheel import EARLY_S, TimerWheel
from ws_bench.fakes.tools import arguments_for, offered_tool, pieces_of, requested_tool

_TOKEN = re.compile(r"\s*\S+|\s+$")
_FILLER_TEXT = """
Each turn is timed phase by phase so that the log can say where the time went and who holds the loop while others wait
for their next token to come down the wire
"""
_FILLER = tuple(_FILLER_TEXT.split())
_KEPT_BYTES = 4 * 1024 * 1024
MAX_LATE_MS = 10_000
_RETRY_STATUSES = frozenset({429, 503})


@dataclass(slots=True)
class MockLlmStats:
    """What the fake model did since it started, for tests and reports.

    A stream here is an accepted completion, streamed or not: open until it is finished, cut by the client or
    truncated by its knob. A stalled one stays open until the client leaves.
    """

    chat_requests: int = 0
    embedding_requests: int = 0
    rerank_requests: int = 0
    model_requests: int = 0
    refused: int = 0
    open: int = 0
    finished: int = 0
    cut: int = 0
    truncated: int = 0
    tokens: int = 0
    late_ms: Counter[int] = field(default_factory=Counter)
    """Finished streams by how late their last token left, in whole milliseconds, up to `MAX_LATE_MS`."""
    last: "deque[tuple[int, dict[str, Any]]]" = field(default_factory=deque)
    kept_bytes: int = 0

    def remember(self, request: Mapping[str, Any], size: int, keep: int) -> None:
        """Keep the last `keep` requests, up to four megabytes of bodies."""
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
                "reranks": self.rerank_requests,
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
            "late_ms": {str(late): count for late, count in sorted(self.late_ms.items())},
            "last_messages_count": len(last[-1]["messages"]) if last else 0,
            "last_requests": last,
        }


class Completions:
    """Answers requests to the model for one server, with its default knobs and its statistics."""

    def __init__(self, wheel: TimerWheel, stats: MockLlmStats, defaults: Knobs, *, seed: int, keep: int) -> None:
        self._wheel = wheel
        self._stats = stats
        self._defaults = defaults
        self._keep = keep
        self._random = Random(seed)  # noqa: S311 - draws which requests fail, not a secret
        self._numbers = itertools.count(1)

    def handle(self, wire: Wire, body: bytes, connection: Connection) -> None:
        """Answer one request, at once or over time."""
        self._stats.chat_requests += 1
        try:
            request = wire.read(body)
            knobs = knobs_of(request["model"], self._defaults)
        except (BadRequest, BadKnob) as failure:
            self._stats.refused += 1
            connection.respond(400, wire.error(str(failure), 400))
            return
        self._stats.remember(request, len(body), self._keep)
        if knobs.error and self._random.random() < knobs.error:
            self._refuse(wire, knobs, connection)
            return
        plan = self._plan(request, knobs)
        times = TokenSchedule(knobs, plan.answer_tokens, self._random)
        if not request.get("stream"):
            _Whole(wire, plan, knobs, times, connection, self._stats, self._wheel).step()
        elif connection.can_stream:
            _Stream(wire, plan, knobs, times, connection, self._stats, self._wheel).start()
        else:
            self._stats.refused += 1
            connection.respond(505, wire.error("streams need HTTP/1.1", 400))

    def _refuse(self, wire: Wire, knobs: Knobs, connection: Connection) -> None:
        self._stats.refused += 1
        status = knobs.status
        headers = ((b"retry-after", b"%g" % knobs.retry_s),) if status in _RETRY_STATUSES else ()
        connection.respond(status, wire.error(f"refused by the error knob with {status}", status), headers)

    def _plan(self, request: Mapping[str, Any], knobs: Knobs) -> CompletionPlan:
        turns = turns_of(request["messages"])
        count = round(draw_amount(knobs.tokens, self._random))
        tool = _tool_of(request, turns, knobs, fixed=count > 0)
        if tool is not None:
            tokens = pieces_of(arguments_for(tool, turns))
        else:
            tokens = filler(count) if count > 0 else _TOKEN.findall(reply(turns))
        thoughts = filler(round(draw_amount(knobs.think, self._random))) if request["thinks"] else []
        limit = request["max_tokens"] if isinstance(request.get("max_tokens"), int) else 0
        cut = 0 < limit < len(thoughts) + len(tokens)
        if cut:
            left = max(limit - len(thoughts), 0)
            thoughts, tokens = thoughts[:limit], tokens[:left]
        options = request.get("stream_options")
        prompt_tokens = sum(len(turn.text.split()) for turn in turns)
        return CompletionPlan(
            number=next(self._numbers),
            model=request["model"],
            created=int(time.time()),
            tokens=tokens,
            tool=tool["name"] if tool else "",
            finish_reason="length" if cut else "tool_calls" if tool else "stop",
            prompt_tokens=prompt_tokens,
            with_usage=isinstance(options, dict) and options.get("include_usage") is True,
            thoughts=thoughts,
            cached_tokens=min(knobs.cached, prompt_tokens),
        )


def _tool_of(request: Mapping[str, Any], turns: Sequence[Turn], knobs: Knobs, *, fixed: bool) -> dict[str, Any] | None:
    """The tool to call: the knob's, else the one that the user asks for unless the answer's length is `fixed`."""
    if knobs.tool:
        return offered_tool(request, knobs.tool)
    return None if fixed else requested_tool(request, turns)


def filler(count: int) -> list[str]:
    """A text of exactly `count` tokens: words, each with the space before it."""
    return [
        _FILLER[index % len(_FILLER)] if index == 0 else f" {_FILLER[index % len(_FILLER)]}"
        for index in range(min(count, MAX_TOKENS))
    ]


def _stop_of(knobs: Knobs, tokens: int) -> tuple[int, str]:
    """The number of tokens after which the answer ends, and how: `finish`, `stall` or `truncate`."""
    stops = [(stop, name) for stop, name in ((knobs.stall, "stall"), (knobs.truncate, "truncate")) if stop is not None]
    stop, name = min(stops, default=(tokens + 1, "finish"))
    return (stop, name) if stop <= tokens else (tokens, "finish")


class TokenSchedule:
    """When the tokens of one answer are due, in seconds after its request; draw_amount once, on arrival."""

    __slots__ = ("_due", "_gap_s", "_pause", "_start_s")

    def __init__(self, knobs: Knobs, tokens: int, random: Random) -> None:
        self._start_s = draw_amount(knobs.ttft_ms, random) / 1000
        self._pause = (knobs.pause[0], knobs.pause[1] / 1000) if knobs.pause else None
        self._due: list[float] | None = None
        self._gap_s = 0.0
        if isinstance(knobs.gap_ms, RandomVariable):
            gaps = (knobs.gap_ms.draw(random) / 1000 for _ in range(max(tokens - 1, 0)))
            self._due = list(itertools.accumulate(gaps, initial=self._start_s))
        else:
            self._gap_s = knobs.gap_ms / 1000

    def due_s(self, position: int) -> float:
        """When the token at a position (from 0) is due."""
        due = (
            self._start_s + position * self._gap_s
            if self._due is None
            else self._due[min(position, len(self._due) - 1)]
        )
        return due + self._pause[1] if self._pause is not None and position >= self._pause[0] else due


class _Answer:
    """What streamed and whole answers share: the schedule, and counting how they end."""

    __slots__ = (
        "_connection", "_ending", "_garbage", "_last_at", "_open", "_plan", "_start", "_stats", "_stop", "_times",
        "_wheel", "_wire",
    )  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        plan: CompletionPlan,
        knobs: Knobs,
        times: TokenSchedule,
        connection: Connection,
        stats: MockLlmStats,
        wheel: TimerWheel,
    ) -> None:
        now = wheel.time()
        self._wire = wire
        self._plan = plan
        self._garbage = knobs.garbage
        self._connection = connection
        self._stats = stats
        self._wheel = wheel
        self._stop, self._ending = _stop_of(knobs, plan.answer_tokens)
        self._start = now
        self._times = times
        self._last_at = now + times.due_s(max(self._stop - 1, 0))
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
        # Not by the loop's own clock, which stands still while it serves a bucket of streams.
        late_s = max(time.monotonic() - self._last_at, 0.0)
        self._stats.late_ms[min(int(late_s * 1e3), MAX_LATE_MS)] += 1

    def _truncate(self) -> None:
        self._open = False
        self._stats.open -= 1
        self._stats.truncated += 1
        self._connection.abort()


class _Stream(_Answer):
    """One streamed completion: a cursor over its frames, advanced by the timer wheel."""

    __slots__ = ("_frames", "_sent")

    def start(self) -> None:
        """Begin to send, with what is due already."""
        wire = self._wire
        frames, end = wire.frames(self._plan)
        if self._garbage is not None and frames:
            at = min(self._garbage, len(frames) - 1)
            frames[at] = wire.garbage + frames[at]
        frames = frames[: self._stop]
        if self._ending == "finish":
            frames = [*frames[:-1], (frames[-1] if frames else b"") + end]
        # Without any token the head of the answer must still be sent.
        self._frames = frames or [b""]
        self._sent = 0
        self.step()

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
                connection.start_stream(data, self._wire.stream_type)
            else:
                connection.write(data)
        if sent < len(frames):
            self._wheel.call_at(self._due(sent), self.step)
        elif self._ending == "finish":
            self._finished()
            connection.end_stream()
        elif self._ending == "truncate":
            self._truncate()

    def _due(self, position: int) -> float:
        return self._last_at if position == len(self._frames) - 1 else self._start + self._times.due_s(position)


class _Whole(_Answer):
    """One completion sent in one piece at the time at which its stream would have ended."""

    __slots__ = ()

    def step(self) -> None:
        """Send the answer if it is due."""
        if not self._open or self._ending == "stall":
            return
        if self._last_at > self._wheel.time() + EARLY_S:
            self._wheel.call_at(self._last_at, self.step)
        elif self._ending == "truncate":
            self._truncate()
        else:
            self._stats.tokens += self._plan.answer_tokens
            self._finished()
            body = dumps(self._wire.whole(self._plan))
            self._connection.respond_bytes(200, body if self._garbage is None else body[: len(body) // 2])
