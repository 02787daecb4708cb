"""How the fake model behaves: set by flags for all requests, and by the model name for one.

Syntax of a model name: `NAME[;KEY=VALUE]…`, for example `mock;ttft=3000;gap=20;tokens=50;error=0.1;status=429`.
NAME is anything without `;`. A key in the name replaces the flag's value for that request.

| key | unit | meaning (default) |
|---|---|---|
| `ttft` | ms | from the request's last byte to the first token (0) |
| `gap` | ms | between one token and the next, on a fixed schedule: lateness does not add up (0) |
| `tokens` | count | answer with exactly this many tokens, whatever is asked (0: answer usefully) |
| `think` | count | tokens of reasoning before the others (0), where the request lets its wire show it |
| `cached` | count | tokens of the prompt that usage reports as read from a cache, at most all of them (0) |
| `tool` | name | call this tool if the request offers it and has no result yet; `*`: the first one offered (off) |
| `floor` | ms | the last token and the end are not sent before this time (0) |
| `error` | 0..1 | share of requests refused with `status` (0; 1 if only `status` is given) |
| `status` | HTTP | status of a refusal, 400..599; 429 and 503 carry `Retry-After` (500) |
| `retry` | s | what `Retry-After` says (1) |
| `pause` | count:ms | after `count` tokens a silence of `ms` milliseconds, then the rest (off) |
| `stall` | count | send this many tokens, then nothing, and keep the connection open (off) |
| `truncate` | count | send this many tokens, then close the connection without an end (off) |
| `garbage` | count | after this many tokens an event that is not JSON, then the rest (off) |

`ttft`, `gap`, `tokens` and `think` may be distributions, drawn with the server's `--seed`: `exp:MEAN`,
`uniform:LOW..HIGH`, `normal:MEAN,SD`, `lognormal:MEDIAN,P95` (`ttft=lognormal:300,900;gap=exp:20`). A gap is drawn for
each token.

A token is a word with the space before it, in a tool call a piece of its arguments; tokens of reasoning count like the
others in `ttft`, `gap`, `pause`, `stall`, `truncate` and `garbage`. The same times hold for an answer
that is not streamed: it comes when a stream would have ended; `stall` and `truncate` then mean no answer, and a closed
connection, and `garbage` a body that is not JSON.
An unknown key or a value out of range is answered with 400 and the list of keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from ws_bench.config.distributions import RandomVariable, parse_distribution
from ws_bench.errors import UsageError

Amount = float | RandomVariable
Value = Amount | str | tuple[int, float]
MAX_TOKENS = 100_000
_MAX_MS = 3_600_000.0


class BadKnob(ValueError):
    """An unknown knob or a value out of range."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """The behaviour of one answer. Times in milliseconds; `stall`, `truncate`, `garbage`, `pause` are None when off."""

    ttft_ms: Amount = 0.0
    gap_ms: Amount = 0.0
    tokens: Amount = 0
    think: Amount = 0
    cached: int = 0
    tool: str = ""
    floor_ms: float = 0.0
    error: float = 0.0
    status: int = 500
    retry_s: float = 1.0
    stall: int | None = None
    truncate: int | None = None
    garbage: int | None = None
    pause: tuple[int, float] | None = None


def draw_amount(amount: Amount, random: Random) -> float:
    """The amount, or the next value of the random variable."""
    return amount.draw(random) if isinstance(amount, RandomVariable) else amount


def _amount(plain: Callable[[str], float]) -> Callable[[str], Amount]:
    """A parser of a plain value or of a distribution of such values."""

    def parse(text: str) -> Amount:
        if ":" not in text:
            return plain(text)
        try:
            return parse_distribution(text, plain)
        except UsageError as failure:
            raise ValueError(text) from failure

    return parse


def _pause(text: str) -> tuple[int, float]:
    after, _, ms = text.partition(":")
    return _count(0, MAX_TOKENS)(after), _number(0, _MAX_MS)(ms)


def _name(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _count(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


KNOBS: dict[str, tuple[str, Callable[[str], Value]]] = {
    "ttft": ("ttft_ms", _amount(_number(0, _MAX_MS))),
    "gap": ("gap_ms", _amount(_number(0, _MAX_MS))),
    "tokens": ("tokens", _amount(_count(0, MAX_TOKENS))),
    "think": ("think", _amount(_count(0, MAX_TOKENS))),
    "cached": ("cached", _count(0, MAX_TOKENS)),
    "floor": ("floor_ms", _number(0, _MAX_MS)),
    "error": ("error", _number(0, 1)),
    "status": ("status", _count(400, 599)),
    "stall": ("stall", _count(0, MAX_TOKENS)),
    "truncate": ("truncate", _count(0, MAX_TOKENS)),
    "tool": ("tool", _name),
    "retry": ("retry_s", _number(0, 3600)),
    "pause": ("pause", _pause),
    "garbage": ("garbage", _count(0, MAX_TOKENS)),
}
"""Key in a model name (and flag) → field of `Knobs` and its parser."""


def parse_knob(key: str, text: str) -> Value:
    """The value of one knob. Raises `BadKnob`, whose text lists the keys."""
    try:
        _, parse = KNOBS[key]
        return parse(text)
    except KeyError:
        raise BadKnob(f"unknown knob {key!r}: use {', '.join(KNOBS)}") from None
    except ValueError:
        raise BadKnob(f"knob {key} cannot be {text!r}") from None


def knobs_of(model: str, defaults: Knobs) -> Knobs:
    """The knobs of a model name, on top of the flags. Raises `BadKnob`."""
    _, separator, rest = model.partition(";")
    if not separator:
        return defaults
    changes: dict[str, Value] = {}
    for item in rest.split(";"):
        if item.strip():
            key, _, value = item.partition("=")
            changes[key.strip()] = parse_knob(key.strip(), value.strip())
    return with_knobs(defaults, changes)


def with_knobs(defaults: Knobs, changes: Mapping[str, Value]) -> Knobs:
    """`defaults` with some knobs replaced; a status without `error` refuses every request with it."""
    if "status" in changes and "error" not in changes and defaults.error == 0:
        changes = {**changes, "error": 1.0}
    return replace(defaults, **{KNOBS[key][0]: value for key, value in changes.items()})  # type: ignore[arg-type] # parsers give each field's type
