"""What the cases see of every door: one conversation of a client, and what it hears of a turn in the same words."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tests.support.service import RunningService

Kind = Literal["text", "reasoning", "citation", "usage", "question", "end", "refusal"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a client is told that there is no answer. `status` is HTTP's, or what closed the socket, 0 where the
    connection stays; `field` is what was wrong in the request; `later`: it is told when to come again."""

    code: str
    status: int = 0
    field: str | None = None
    later: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """One thing that a client heard: text and reasoning in fragments, the address of a citation, (input, output)
    tokens, the words of a question, the reason of an end, a `Refusal`."""

    kind: Kind
    value: Any


@dataclass(frozen=True, slots=True)
class Event:
    """What came in one piece, and where a client is behind it."""

    heard: tuple[Heard, ...]
    position: Any = None


@dataclass(frozen=True, slots=True)
class Refusals:
    """What a door says to an agent that is not there, to a question that is too long, to a model that breaks off in the
    middle of an answer, and to an ask too many in a minute. `too_many_open` is to another connection of a user who may
    have no more (None: the door's do not count), or, of the doors where the newest wins, to the oldest."""

    unknown_agent: Refusal
    too_long: Refusal
    broken: Refusal
    too_many_asks: Refusal
    too_many_open: Refusal | None = None


@dataclass(slots=True)
class Wire:
    """All that went over the connections of a case, as text."""

    said: list[str] = field(default_factory=list)

    def note(self, *what: object) -> None:
        """Keep what was sent or has come."""
        self.said += map(str, what)

    def __contains__(self, word: str) -> bool:
        return any(word in said for said in self.said)


class Talk(ABC):
    """A conversation of a client with an agent through one door. Closing what iterates over a turn cuts its connection.

    The methods that a door has no use for stay as they are: nothing calls them.
    """

    row: ClassVar[str]
    """The door's row in docs/doors.md."""
    refusals: ClassVar[Refusals]
    from_the_beginning: ClassVar[bool] = False
    """Whether `again` tells the turn from its first event, in place of what was heard."""
    hears_the_end: ClassVar[bool] = True
    """Whether whoever cancels a turn is still there to hear its end."""
    newest_wins: ClassVar[bool] = False
    """Whether a connection too many closes the user's oldest, in place of being refused."""

    def __init__(self, service: RunningService, agent: str, wire: Wire) -> None:
        self.service = service
        self.agent = agent
        self.wire = wire
        self.session_id = ""
        self.exchange = ""

    async def begin(self) -> None:  # noqa: B027 - most doors do nothing
        """Do what comes before the first question."""

    @abstractmethod
    def ask(self, text: str) -> AsyncIterator[Event]:
        """The events of a new turn."""

    def again(self, heard: list[Event]) -> AsyncIterator[Event]:
        """The events of the same turn for a client that was cut after `heard`."""
        raise NotImplementedError

    def allow(self) -> AsyncIterator[Event]:
        """The events that follow a yes to the question that was heard."""
        raise NotImplementedError

    async def cancel(self) -> None:  # noqa: B027 - at many doors it is to leave
        """Stop the turn, where that is not to leave it."""

    async def answer(self) -> dict[str, Any]:
        """The last message that history has of the conversation."""
        return (await self.history())[-1]

    async def history(self) -> list[dict[str, Any]]:
        """What is kept of the conversation."""
        return await self.service.history(self.session_id)


async def hear(events: AsyncIterator[Event], most: int | None = None) -> list[Event]:
    """The events of a turn, to its end or to so many; then the connection is cut."""
    taken: list[Event] = []
    async with aclosing(events):  # type: ignore[type-var] # an async generator
        if most == 0:
            return taken
        async for event in events:
            taken.append(event)
            if len(taken) == most:
                break
    return taken


def told(events: Iterable[Event]) -> list[Heard]:
    """What was heard, with neighbouring fragments joined: the same however a connection kept up."""
    joined: list[Heard] = []
    for event in events:
        for one in event.heard:
            last = joined[-1] if joined else None
            if last is not None and one.kind == last.kind and one.kind in ("text", "reasoning"):
                joined[-1] = Heard(one.kind, last.value + one.value)
            else:
                joined.append(one)
    return joined


def values(events: Iterable[Event], kind: Kind) -> list[Any]:
    """What was heard of one kind."""
    return [one.value for event in events for one in event.heard if one.kind == kind]


def text_of(events: Iterable[Event], kind: Kind = "text") -> str:
    """The fragments of one kind as one text."""
    return "".join(values(events, kind))


def spent(message: dict[str, Any]) -> tuple[int, int]:
    """The tokens that history says an answer took."""
    usage = message["metadata"]["extras"]["usage"]
    return usage["input_tokens"], usage["output_tokens"]
