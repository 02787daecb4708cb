"""The header `traceparent` of W3C Trace Context: which trace a request belongs to."""

import re
from typing import Final, NamedTuple

from backend_kit.kpi import current_ledger

HEADER: Final = "traceparent"
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_FIRST: Final = "00"
_INVALID: Final = "ff"
SAMPLED: Final = 0x01
_RANDOM: Final = 0x02
"""Whether the right half of the trace id is random: a flag of level 2, which is handed on."""


class TraceParent(NamedTuple):
    """A trace and the span in it that the next ones are children of. Ids in lower-case hex, 32 and 16 digits; its text
    is the header."""

    trace_id: str
    span_id: str
    flags: int = 0

    @property
    def sampled(self) -> bool:
        """Whether who began the trace keeps it."""
        return bool(self.flags & SAMPLED)

    @classmethod
    def read(cls, text: str) -> "TraceParent":
        """The one whose text this is; what others send needs `parse`."""
        return cls(text[3:35], text[36:52], int(text[53:55], 16))

    def __str__(self) -> str:
        return f"{_FIRST}-{self.trace_id}-{self.span_id}-{self.flags & (SAMPLED | _RANDOM):02x}"


def parse(header: str) -> TraceParent | None:
    """The header's content, None where it is none that the standard allows: then there was no header.

    A version above 00 may have more behind a dash, which is not understood and not handed on.
    """
    found = _FORM.match(header)
    if found is None:
        return None
    version, trace_id, span_id, flags = found.groups()
    rest = header[found.end() :]
    if version == _INVALID or (rest and (version == _FIRST or not rest.startswith("-"))):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceParent(trace_id, span_id, int(flags, 16))


def trace_headers() -> dict[str, str]:
    """The header of a call that the current turn makes; none outside of a turn, or where its ask came without and none
    is traced."""
    ledger = current_ledger()
    return {} if ledger is None or ledger.traceparent is None else {HEADER: ledger.traceparent}
