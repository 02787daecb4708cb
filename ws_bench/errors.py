"""Failures of the load tester.

BenchError
├── UsageError           flags that cannot be run: exit 2
├── PreparationFailed    the run never began (sessions could not be created): exit 2
└── TurnBroken           one turn that did not end well; carries the class under which it is counted
    └── SessionCallFailed  the session could not be created or deleted
"""

from backend_kit.wire import InvalidJson, loads

_REFUSAL_CHARS = 300


class BenchError(Exception):
    """Root of the failures that the load tester prints as one line instead of a traceback."""


class UsageError(BenchError):
    """An unknown flag, a value out of range, or input that cannot be used."""


class PreparationFailed(BenchError):
    """Something that the first turn needs could not be set up."""


class TurnBroken(BenchError):
    """A turn that is not a success.

    `kind` is the error class of the report, such as `tcp_refused` or `ws_close_1011`. `usable` says whether the
    socket can carry the client's next turn.
    """

    def __init__(self, kind: str, detail: str = "", *, usable: bool = False) -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail
        self.usable = usable


class SessionCallFailed(TurnBroken):
    """The service did not create or delete a session."""


def json_or_text(raw: bytes) -> object:
    """The body of an answer: parsed if it is JSON, else its beginning as text."""
    try:
        return loads(raw)
    except InvalidJson:
        return raw[: 4 * _REFUSAL_CHARS].decode(errors="replace")


def refusal_text(body: object) -> str:
    """The reason in a refusal: `{"detail": {"code", "message"}}`, `{"detail": "…"}`, OpenAI's
    `{"error": {"code", "message"}}` or a short text; else empty."""
    detail = (body.get("detail") or body.get("error")) if isinstance(body, dict) else body
    if isinstance(detail, dict):
        detail = ", ".join(str(detail[key]) for key in ("code", "message") if detail.get(key))
    # A proxy's HTML page says less than its status.
    if not isinstance(detail, str) or detail.lstrip().startswith("<"):
        return ""
    return detail[:_REFUSAL_CHARS]
