"""The shape of a stream's events: what stands before and after the text, the same in nearly all of them."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from agentic_backend.llm.chunks import only_text
from backend_kit.wire import InvalidJson, loads

_TEXT: Final = re.compile(rb'"content"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_PROBE: Final = "probe"


class TextShape:
    """The bytes around the text of one event that is nothing but text (`only_text`).

    In another event with the same bytes around it, what is in their place is its text, if it is the inside of one JSON
    string: all texts of a read are decoded by one look at each event and one call of the decoder, a fifth of the time
    that an object for each event takes.
    """

    __slots__ = ("_after", "_before", "_least")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._least = len(before) + len(after)

    @classmethod
    def of(cls, event: bytes) -> "TextShape | None":
        """The shape of an event that is nothing but text; None where its first `content` is not that text."""
        found = _TEXT.search(event)
        if found is None:
            return None
        before, after = event[: found.start(1)], event[found.end(1) :]
        try:
            said = only_text(loads(b"%b%b%b" % (before, _PROBE.encode(), after)))
        except InvalidJson:
            return None
        return cls(before, after) if said == _PROBE else None

    def leading_text(self, events: Sequence[bytes], place: int) -> tuple[int, str]:
        """How many events from `place` on have this shape, and their texts as one.

        "" where these have to be read as objects: one of them is broken, or has NUL in its text.
        """
        before, after, least = self._before, self._after, self._least
        texts = []
        for event in islice(events, place, None):
            if len(event) <= least or not event.startswith(before) or not event.endswith(after):
                break
            texts.append(event[len(before) : -len(after)])
        return len(texts), _decoded(texts) if texts else ""


def _decoded(texts: list[bytes]) -> str:
    """The insides of JSON strings as one text, "" where one of them is none."""
    joined = b'","'.join(texts)
    # A text that ends in a backslash would take its closing quote with it.
    if b'\\","' in joined or joined.endswith(b"\\"):
        return ""
    try:
        decoded = loads(b'["%b"]' % joined)
        text = "".join(decoded)
    except (InvalidJson, TypeError):
        return ""
    # As many strings as texts, and nothing else: so none of them had a quote that ended it early.
    return text if len(decoded) == len(texts) and "\0" not in text else ""
