"""JSON lines: each line is a record, written as one `key: value` a line; what is nested is named `outer.inner`."""

from collections.abc import Iterator
from typing import Any

from backend_kit.wire import InvalidJson, dumps, loads
from knowledge_flow_backend.ingest.blocks import Kind, Parsed, Writer
from knowledge_flow_backend.ingest.parsers.decode import clean, decode, lines_of
from knowledge_flow_backend.library.reasons import Reason, Refused

MAX_CHARS = 60_000_000
_MAX_BROKEN = 0.1
"""Share of lines that are no JSON, above which the file is taken for something else."""
_MAX_DEPTH = 4
"""Below, a value is written as JSON."""


def parse(data: bytes, *, max_chars: int = MAX_CHARS) -> Parsed:
    """Parse one file; its title is its name. Raises `Refused`."""
    writer = Writer()
    lines = broken = 0
    cut = []
    for line in filter(None, map(str.strip, lines_of(decode(data)))):
        lines += 1
        try:
            record = loads(line)
        except InvalidJson:
            broken += 1
            continue
        writer.add(Kind.RECORD, "\n".join(_described("", record, 0)))
        if writer.length > max_chars:
            cut.append(f"The file goes on: its first {lines} lines were read.")
            break
    if broken > lines * _MAX_BROKEN:
        raise Refused(Reason.UNREADABLE)
    if broken:
        cut.insert(0, f"{broken} of {lines} lines are no JSON and were left out.")
    return writer.parsed("", cut=" ".join(cut))


def _described(name: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, dict) and value and depth < _MAX_DEPTH:
        for key, inner in value.items():
            yield from _described(f"{name}.{key}" if name else key, inner, depth + 1)
        return
    if isinstance(value, list) and all(isinstance(inner, str | int | float) for inner in value):
        value = ", ".join(_plain(inner) for inner in value)
    text = _plain(value)
    if text:
        yield clean(f"{name}: {text}" if name else text)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else dumps(value).decode()
