"""Branches of a conversation: a question may begin after a message other than the newest one.

A mark in the question itself (`metadata.extras.after_rank`) is the only record of that: such a question follows that
message, any other the one before it. So a line leads back from each message, and that of the newest message is the live
one. Everything else is superseded by the exchange on the live line that replaces it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentic_backend.events import ChatMessage
from backend_kit.wire import dumps, loads

AFTER_RANK: Final = "after_rank"
REGENERATES: Final = "regenerates"
SUPERSEDED_BY: Final = "superseded_by"
BEFORE_ALL: Final = -1
"""The `after_rank` of a question that starts over from the beginning."""


@dataclass(frozen=True, slots=True)
class Fork:
    """An exchange whose question has `rank`, and that began after the message of `after_rank`."""

    rank: int
    after_rank: int
    exchange_id: str

    def replaces(self, rank: int) -> bool:
        """Whether a rank lies between the two: its message is not on any line that contains the fork."""
        return self.after_rank < rank < self.rank


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a message in its session: whether it is on the live line, and whether its exchange ends with it."""

    live: bool
    ends: bool


@dataclass(frozen=True, slots=True)
class Branching:
    """Where a question begins: after which rank (None: after the newest), and the exchange whose question it asks again
    (None for a new question)."""

    after_rank: int | None = None
    regenerates: str | None = None

    @classmethod
    def of(cls, question: ChatMessage) -> "Branching":
        """That of a question as it is stored."""
        if not is_question(question) or b'"after_rank"' not in question.json:
            return cls()
        return cls.from_metadata(question.metadata)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Branching":
        """That of the metadata of a question."""
        extras = metadata.get("extras")
        if not isinstance(extras, dict) or not isinstance(extras.get(AFTER_RANK), int):
            return cls()
        return cls(extras[AFTER_RANK], extras.get(REGENERATES))

    def extras(self) -> dict[str, Any]:
        """What the question's `metadata.extras` say of it."""
        said = {AFTER_RANK: self.after_rank, REGENERATES: self.regenerates}
        return {name: value for name, value in said.items() if value is not None}


def is_question(message: ChatMessage) -> bool:
    """Whether an exchange begins with it."""
    return (message.role, message.channel) == ("user", "final")


def forks_in(messages: Iterable[ChatMessage]) -> list[Fork]:
    """The forks among these messages."""
    forks = []
    for message in messages:
        after_rank = Branching.of(message).after_rank
        if after_rank is not None and after_rank < message.rank - 1:
            forks.append(Fork(message.rank, after_rank, message.exchange_id))
    return forks


def line_forks(forks: Iterable[Fork], up_to: int | None = None) -> list[Fork]:
    """Those of a session's forks that are on its live line, or on the line that ends at `up_to`, newest first.

    What is between two of them followed on what stood before it, so the newest up to any message is on its line.
    """
    found, end = [], up_to
    for fork in sorted(forks, key=lambda one: one.rank, reverse=True):
        if end is None or fork.rank <= end:
            found.append(fork)
            end = fork.after_rank
    return found


def superseded_by(on_line: Sequence[Fork], rank: int) -> str | None:
    """The exchange that replaces the message of a rank; None for one on the line. `on_line` is what `line_forks` gives:
    it is searched for the next fork behind the message, since only that one can replace it."""
    behind = bisect_left(on_line, -rank, key=lambda fork: -fork.rank)
    following = on_line[behind - 1] if behind else None
    return following.exchange_id if following is not None and following.replaces(rank) else None


def line_of(messages: Sequence[ChatMessage], up_to: int | None = None) -> list[ChatMessage]:
    """Those of a session's messages that are on the live line, or on the line that ends at `up_to`."""
    on_line = line_forks(forks_in(messages), up_to)
    until = messages if up_to is None else [message for message in messages if message.rank <= up_to]
    return [message for message in until if superseded_by(on_line, message.rank) is None]


def standing_of(messages: Sequence[ChatMessage], rank: int) -> Standing | None:
    """How the message of a rank stands among those of its session, by ascending rank; None if it is none of them."""
    following = [message for message in messages if message.rank >= rank]
    if not following or following[0].rank != rank:
        return None
    ends = len(following) == 1 or is_question(following[1])
    return Standing(superseded_by(line_forks(forks_in(messages)), rank) is None, ends)


def marked(message: bytes, by: str | None) -> bytes:
    """An encoded ChatMessage that says which exchange superseded it; unchanged where none did."""
    if by is None:
        return message
    body = loads(message)
    extras = body["metadata"].get("extras")
    body["metadata"]["extras"] = {**(extras if isinstance(extras, dict) else {}), SUPERSEDED_BY: by}
    return dumps(body)
