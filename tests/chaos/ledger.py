"""What clients asked and were told, and the comparison of it with what is stored once all is well again."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a session as a client, the database or the history shows it."""

    rank: int
    exchange_id: str
    role: str
    channel: str
    text: str
    status: str = field(default="", compare=False)
    """`metadata.extras.status`: `interrupted` for a turn that was cut short."""


@dataclass(slots=True)
class Asked:
    """A question under its client_exchange_id. Times are perf_counter() seconds."""

    exchange_id: str
    session_id: str
    text: str
    sent_at: float = 0.0
    told_at: float = 0.0
    durable: str = ""
    answer: tuple[Message, ...] = ()
    """The messages of the `final` or `cancelled` that a client received."""

    @property
    def took_s(self) -> float:
        """First sending to answer."""
        return self.told_at - self.sent_at


@dataclass(slots=True)
class Report:
    """The ledger against the store. Everything but `acked`, `unanswered`, `unheard` and `interrupted` must be 0.

    `unheard` are questions whose client left without an answer, and that have one all the same."""

    acked: int = 0
    lost: int = 0
    differ: int = 0
    duplicated: int = 0
    gaps: int = 0
    collisions: int = 0
    unended: int = 0
    sessions_lost: int = 0
    history_differs: int = 0
    changed: int = 0
    unanswered: int = 0
    unheard: int = 0
    interrupted: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Everything that must not be, the lost ones apart."""
        counts = (self.differ, self.duplicated, self.gaps, self.collisions, self.unended)
        return sum(counts) + self.sessions_lost + self.history_differs + self.changed

    def words(self) -> str:
        """What is wrong, by kind, with the first examples."""
        kinds = ("lost", "differ", "duplicated", "gaps", "collisions", "unended", "sessions_lost", "history_differs")
        told = [f"{kind}={count}" for kind in (*kinds, "changed") if (count := getattr(self, kind))]
        return " ".join([*told, *self.examples[:5]])


class Ledger:
    """Every ask of every client, and every answer."""

    def __init__(self) -> None:
        self.asks: dict[str, Asked] = {}
        self.sessions: set[str] = set()
        self.errors: Counter[str] = Counter()
        self.cuts = 0
        self.told_count = 0
        self.changed: list[str] = []
        self.asked_again: set[str] = set()
        """Questions that were open when their socket broke, and were asked on the next one."""
        self.late: set[str] = set()
        """Questions whose socket stayed open and brought no end while their client had patience."""

    def ask(self, exchange_id: str, session_id: str, text: str) -> Asked:
        """Enter a question."""
        asked = self.asks[exchange_id] = Asked(exchange_id, session_id, text, perf_counter())
        self.sessions.add(session_id)
        return asked

    def told(self, asked: Asked, frame: Mapping[str, Any]) -> None:
        """Enter the `final` or `cancelled` of a question; another one than before is a finding."""
        answer = tuple(message_of(message) for message in frame["messages"])
        if asked.answer and asked.answer != answer:
            self.changed.append(asked.exchange_id)
        if not asked.answer:
            self.told_count += 1
            asked.told_at = perf_counter()
            asked.answer, asked.durable = answer, frame.get("durable", "")

    @property
    def answered(self) -> list[Asked]:
        """Questions with an answer, in the order of the answers."""
        return sorted((asked for asked in self.asks.values() if asked.answer), key=lambda asked: asked.told_at)

    def within(self, begun: float, ended: float) -> list[Asked]:
        """Answered questions that were sent in a span of perf_counter()."""
        return [asked for asked in self.asks.values() if asked.answer and begun <= asked.sent_at <= ended]


def message_of(message: Mapping[str, Any]) -> Message:
    """A ChatMessage as frames and the history hold it."""
    extras = message["metadata"].get("extras") or {}
    text = "".join(part.get("text", "") for part in message["parts"])
    return Message(
        message["rank"],
        message["exchange_id"],
        message["role"],
        message["channel"],
        text,
        str(extras.get("status", "")),
    )


def compare(
    ledger: Ledger, rows: Mapping[str, list[Message]], sessions: Mapping[str, int], history: Mapping[str, list[Message]]
) -> Report:
    """The ledger against `rows` by session, `sessions` (id → next_rank) and the answers of GET history."""
    report = Report(changed=len(ledger.changed))
    stored: defaultdict[str, list[Message]] = defaultdict(list)
    for messages in rows.values():
        for message in messages:
            stored[message.exchange_id].append(message)
    for asked in ledger.asks.values():
        if asked.answer:
            _compare_answer(asked, stored[asked.exchange_id], report)
        else:
            report.unanswered += 1
            report.unheard += any(_is_end(one) and one.status != "interrupted" for one in stored[asked.exchange_id])
    report.collisions = _collisions(ledger.asks.values())
    for session_id in ledger.sessions:
        _compare_session(rows.get(session_id, []), sessions.get(session_id), report, session_id)
        if session_id in history and history[session_id] != rows.get(session_id, []):
            report.history_differs += 1
            report.examples.append(f"history of {session_id} is not its rows")
    return report


def _compare_answer(asked: Asked, stored: list[Message], report: Report) -> None:
    report.acked += 1
    by_rank = {message.rank: message for message in stored}
    if any(message.rank not in by_rank for message in asked.answer):
        report.lost += 1
        report.examples.append(f"lost {asked.exchange_id} of {asked.session_id} ({asked.durable})")
    elif any(by_rank[message.rank] != message for message in asked.answer):
        report.differ += 1
        report.examples.append(f"{asked.exchange_id} is stored with another text")


def _collisions(asks: Iterable[Asked]) -> int:
    """Ranks that answers of two exchanges claimed."""
    owners: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for asked in asks:
        for message in asked.answer:
            owners[asked.session_id, message.rank].add(asked.exchange_id)
    return sum(len(exchanges) - 1 for exchanges in owners.values())


def _compare_session(rows: list[Message], next_rank: int | None, report: Report, session_id: str) -> None:
    if next_rank is None:
        report.sessions_lost += 1
        report.examples.append(f"session {session_id} is gone")
        return
    ranks = [message.rank for message in rows]
    if ranks != list(range(len(ranks))) or next_rank != len(ranks):
        report.gaps += 1
        report.examples.append(f"ranks of {session_id}: next_rank {next_rank}, {len(ranks)} rows, last {ranks[-3:]}")
    asked = Counter(message.exchange_id for message in rows if message.role == "user")
    ended = Counter(message.exchange_id for message in rows if _is_end(message))
    report.duplicated += sum(count - 1 for counted in (asked, ended) for count in counted.values() if count > 1)
    report.unended += len(asked.keys() - ended.keys())
    report.interrupted += sum(1 for message in rows if _is_end(message) and message.status == "interrupted")


def _is_end(message: Message) -> bool:
    return message.role == "assistant" and message.channel == "final"
