"""A response as OpenAI's clients have it: its id, what it was asked with, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.surfaces.openai.answer_reader import Failure, FinishReason
from backend_kit.wire import dumps

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
NOTE: Final = "response"
"""The key of this door's note in a question."""
_NOTE_BYTES: Final = 64 * 1024
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIX: Final = "resp_"
_HEX: Final = 32
_RANK_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class ResponseId:
    """The exchange of a response, `exchange_id` and `session_id` as UUIDs: its id says where it is, so that nothing has
    to be remembered between two requests. An id alone gives no access: the caller must own the session.

    If an agent asked a person, the exchange is one response up to that question, and one more after each answer: that
    one has the `rank` of the answer.
    """

    session_id: str
    exchange_id: str
    rank: int | None = None

    def __str__(self) -> str:
        return f"{_PREFIX}{UUID(self.session_id).hex}{UUID(self.exchange_id).hex}{self._suffix}"

    @property
    def key(self) -> str:
        """The common part of its items' ids, unique among the user's responses."""
        return f"{UUID(self.exchange_id).hex}{self._suffix}"

    @property
    def _suffix(self) -> str:
        return "" if self.rank is None else f"_{self.rank}"

    @classmethod
    def read(cls, text: str) -> "ResponseId | None":
        """Parse an id; None for one that this door did not make."""
        name, sign, rank = text.removeprefix(_PREFIX).partition("_")
        if not text.startswith(_PREFIX) or len(name) != 2 * _HEX or not (name.isascii() and name.isalnum()):
            return None
        if sign and not (rank.isascii() and rank.isdigit() and len(rank) <= _RANK_DIGITS):
            return None
        try:
            session, exchange = UUID(name[:_HEX]), UUID(name[_HEX:])
        except ValueError:
            return None
        made = cls(str(session), str(exchange), int(rank) if sign else None)
        return made if str(made) == text else None


def can_be_noted(said: Any) -> bool:
    """Whether a part of a request is small enough to be stored with its question."""
    return len(dumps(said)) <= _NOTE_BYTES


@dataclass(frozen=True, slots=True)
class Requested:
    """The parameters of a response's request, as stored with its question (`note`).

    `created_at` is in seconds since the epoch. `after` is the newest exchange of the `conversation` that the request
    has read, None where that was new. `before` is what the request had before its question, beside the
    response that it names as `previous`: None where that was too much to be noted. `answers` is the question to a
    person that it answers, in words: it is not kept elsewhere.
    """

    model: str
    created_at: int
    previous: str | None = None
    conversation: str | None = None
    after: str | None = None
    instructions: str | None = None
    background: bool = False
    store: bool = True
    metadata: Mapping[str, str] | None = None
    before: Sequence[HistoryItem] | None = ()
    answers: str | None = None

    def note(self) -> dict[str, Any]:
        """The note as JSON, without instructions of more than 64 KiB, and without items before the question that exceed
        that."""
        told: dict[str, Any] = {"model": self.model, "created_at": self.created_at}
        named = {"previous": self.previous, "conversation": self.conversation, "after": self.after}
        named |= {"answers": self.answers}
        told |= {key: value for key, value in named.items() if value is not None}
        told |= {"background": True} if self.background else {}
        told |= {"metadata": self.metadata} if self.metadata else {}
        if self.instructions and can_be_noted(self.instructions):
            told["instructions"] = self.instructions
        if self.before:
            before = [item.stored() for item in self.before]
            told["before"] = before if can_be_noted(before) else None
        return {NOTE: told}

    @classmethod
    def noted(cls, note: Mapping[str, Any]) -> "Requested":
        """The reverse of `note`, from the value under its key."""
        before = note.get("before", ())
        return cls(
            model=note["model"],
            created_at=note["created_at"],
            previous=note.get("previous"),
            conversation=note.get("conversation"),
            after=note.get("after"),
            instructions=note.get("instructions"),
            background=note.get("background", False),
            metadata=note.get("metadata"),
            answers=note.get("answers"),
            before=None if before is None else tuple(map(HistoryItem.of_stored, before)),
        )


class ResponseObject:
    """The resource: everything that stays the same while its turn runs."""

    def __init__(self, name: ResponseId, asked: Requested) -> None:
        self.name = name
        self._head: dict[str, Any] = {
            "id": str(name),
            "object": "response",
            "created_at": asked.created_at,
            "model": asked.model,
            "background": asked.background,
            "conversation": None if asked.conversation is None else {"id": asked.conversation},
            "instructions": asked.instructions,
            "max_output_tokens": None,
            "max_tool_calls": None,
            "metadata": dict(asked.metadata or {}),
            "parallel_tool_calls": True,
            "previous_response_id": asked.previous,
            "reasoning": {"effort": None, "summary": None},
            "store": asked.store,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
        }

    def as_it_is(self, status: Status, output: Sequence[Any]) -> dict[str, Any]:
        """The response of a turn that has not ended yet."""
        return {**self._head, "status": status, "error": None, "incomplete_details": None, "output": output} | {
            "usage": None
        }

    def ended(self, output: Sequence[Any], end: "ResponseEnd") -> dict[str, Any]:
        """The response of a turn that has ended."""
        failure, reason = end.failure, _INCOMPLETE.get(end.reason)
        return {
            **self._head,
            "status": end.status,
            "completed_at": end.at if end.status == "completed" else None,
            "error": None if failure is None else {"code": failure.code, "message": failure.message},
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": output,
            "usage": usage(end.spent),
        }


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """How a turn ended; `at` is when, in seconds since the epoch, `spent` as in `telling.End`."""

    reason: FinishReason = "stop"
    at: int | None = None
    spent: Mapping[str, Any] | None = None
    failure: Failure | None = None
    cancelled: bool = False

    @property
    def status(self) -> Status:
        """The status of the response."""
        if self.cancelled:
            return "cancelled"
        if self.failure is not None:
            return "failed"
        return "incomplete" if self.reason in _INCOMPLETE else "completed"


def usage(spent: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The `usage` of a response, None where no model reported any."""
    if spent is None:
        return None
    took, gave = spent["input_tokens"], spent["output_tokens"]
    return {
        "input_tokens": took,
        "input_tokens_details": {"cached_tokens": spent.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": gave,
        "output_tokens_details": {"reasoning_tokens": spent.get("reasoning_tokens", 0)},
        "total_tokens": took + gave,
    }


def seconds_of(timestamp: str) -> int:
    """A message's timestamp in seconds since the epoch."""
    return int(datetime.fromisoformat(timestamp).timestamp())
