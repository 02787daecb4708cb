"""What is compared of a response: its status, the keys of its body with the types of their values, and the events of a
stream; with what differs between two of them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

OPEN: Final = "…"
"""A key of a shape that was cut off here: it may have others."""
END: Final = "end"
"""The event that ends a stream: clients take it, and the recorded server does not send it."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_COUNTED: Final = ("location", "content-location", "x-pagination-total")
_TYPES: Final = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
_CUT: Final = re.compile(r"\.\.\.\[\d+\]\s*$")

Shape = Any
"""A type's name, a dictionary of shapes, a list of the first element's shape or of none."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream."""

    event: str
    data: Shape
    has_id: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and what came of it. `events` is None where the body was no stream."""

    call: str
    method: str
    path: str
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Shape = None
    events: list[Event] | None = None
    cut: bool = False
    """The record of the body ends before the body did."""

    def as_json(self) -> dict[str, Any]:
        """The least that says the same."""
        told = asdict(self)
        dull = {
            key for key, value in told.items() if value is None or value is False or (key, value) == ("headers", {})
        }
        return {key: value for key, value in told.items() if key not in dull}

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> "Exchange":
        """The reverse."""
        events = [Event(**event) for event in told["events"]] if "events" in told else None
        return cls(**{**told, "events": events})


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as recorded: `at` is a path of keys, `kind` one of missing, extra, type, status, …"""

    call: str
    kind: str
    at: str
    told: str

    def __str__(self) -> str:
        """A line for a person."""
        return f"{self.call:34} {self.kind:8} {self.at:60} {self.told}"


def exchange_of(call: str, method: str, path: str, status: int, headers: dict[str, str], body: str) -> Exchange:
    """The shape of a response, whose record may end in `...[length]`."""
    cut = _CUT.search(body) is not None
    kept = {name: named(headers[name]) for name in _COUNTED if name in headers}
    if "x-pagination-total" in kept:
        kept["x-pagination-total"] = "number"
    text = _CUT.sub("", body).replace("\r\n", "\n")
    head = (call, method, named(path), status, kept)
    if headers.get("content-type", "").startswith("text/event-stream"):
        return Exchange(*head, events=list(_events(text)), cut=cut)
    if not text.strip():
        return Exchange(*head, cut=cut)
    is_json = "json" in headers.get("content-type", "")
    return Exchange(*head, body=shape_of(*_decoded(text)) if is_json else "text", cut=cut)


def named(path: str) -> str:
    """A path whose ids are no particular ones."""
    return _UUID.sub("{id}", path)


def shape_of(value: Any, open_at: bool = False) -> Shape:
    """The shape of a decoded value; `open_at`: it was cut off at its end."""
    if isinstance(value, dict):
        last = next(reversed(value), None)
        told = {named(key): shape_of(one, open_at and key == last) for key, one in sorted(value.items())}
        return {**told, OPEN: ""} if open_at else told
    if isinstance(value, list):
        return [shape_of(value[0], open_at and len(value) == 1)] if value else []
    return _TYPES[type(value)]


def _decoded(text: str) -> tuple[Any, bool]:
    """The value of a JSON text, of which the end may be missing, and whether it was."""
    try:
        return json.loads(text), False
    except ValueError:
        pass
    closers, ends, in_string, escaped = "", [], False, False
    for place, character in enumerate(text):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            closers = ("]" if character == "[" else "}") + closers
            ends.append((place + 1, closers))
        elif character in "]}":
            closers = closers[1:]
            ends.append((place + 1, closers))
        elif character == ",":
            ends.append((place, closers))
    for place, closing in reversed(ends):
        try:
            return json.loads(text[:place] + closing), True
        except ValueError:
            continue
    raise ValueError("no JSON")


def _events(text: str) -> Iterator[Event]:
    for block in filter(str.strip, text.split("\n\n")):
        fields = dict(line.strip().partition(": ")[::2] for line in block.strip().splitlines())
        if "event" in fields and "data" in fields:  # no comment, nor what was cut before its data
            yield Event(fields["event"], shape_of(*_decoded(fields["data"])), "id" in fields)


def differences(recorded: Exchange, ours: Exchange) -> Iterator[Difference]:
    """What is not as recorded."""
    call = recorded.call
    if recorded.status != ours.status:
        yield Difference(call, "status", "", f"{ours.status} for {recorded.status}")
        return
    for name in sorted({*recorded.headers, *ours.headers}):
        was, now = recorded.headers.get(name), ours.headers.get(name)
        if was != now:
            yield Difference(call, "header", name, f"{now} for {was}")
    if (recorded.events is None) != (ours.events is None):
        yield Difference(call, "type", "", "one is a stream")
    elif recorded.events is not None and ours.events is not None:
        yield from _of_streams(recorded, ours)
    elif not (recorded.cut and recorded.body is None):
        yield from _of_shapes(call, "", recorded.body, ours.body)


def _of_streams(recorded: Exchange, ours: Exchange) -> Iterator[Difference]:
    was, now = (_steps(one.events or []) for one in (recorded, ours))
    if now and now[-1].event == END and was and was[-1].event != END:
        yield Difference(recorded.call, "event", END, "one more")
        now.pop()
    names, ours_names = [event.event for event in was], [event.event for event in now]
    common = ours_names[: len(names)] if recorded.cut else ours_names
    if names != common:
        yield Difference(recorded.call, "events", "", f"{' '.join(ours_names)} for {' '.join(names)}")
    for event in was:
        same = next((one for one in now if one.event == event.event), None)
        if same is None:
            continue
        now.remove(same)
        if event.has_id and not same.has_id:
            yield Difference(recorded.call, "event id", event.event, "has none")
        yield from _of_shapes(recorded.call, f"{event.event}:", event.data, same.data)


def _steps(events: list[Event]) -> list[Event]:
    """Without the chunks of a message behind its first one: how many there are is the model's."""
    return [
        event
        for before, event in zip([None, *events], events, strict=False)
        if before is None or event.event != "messages" or before.event != "messages"
    ]


def _of_shapes(call: str, at: str, was: Shape, now: Shape) -> Iterator[Difference]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now} - {OPEN}):
            place = f"{at}.{key}" if at and not at.endswith(":") else at + key
            if key not in now:
                yield Difference(call, "missing", place, "")
            elif key in was:
                yield from _of_shapes(call, place, was[key], now[key])
            elif OPEN not in was:
                yield Difference(call, "extra", place, "")
    elif isinstance(was, list) and isinstance(now, list):
        if was and now:
            yield from _of_shapes(call, at + "[]", was[0], now[0])
    elif was != now:
        yield Difference(call, "type", at, f"{_name(now)} for {_name(was)}")


def _name(shape: Shape) -> str:
    return shape if isinstance(shape, str) else "object" if isinstance(shape, dict) else "array"
