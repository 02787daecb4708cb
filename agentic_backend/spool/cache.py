"""A cache of recent exchanges for agents: a conversation is read from Postgres once, not once a turn."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentic_backend.events import text_of
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.branches import forks_in
from agentic_backend.session.models import TurnRecord
from agentic_backend.spool.pending import Key
from backend_kit.wire import loads

_ENTRY_BYTES = 600
_EXCHANGE_BYTES = 700
_IMAGE_BYTES = 80


@dataclass(frozen=True, slots=True)
class RememberedExchange:
    """A question and its answer, as an agent gets them."""

    exchange_id: str
    question: HistoryItem
    answer: HistoryItem
    size: int
    """Approximate bytes of memory: each text as it is, and as it is sent to a model."""

    @classmethod
    def of(cls, record: TurnRecord) -> "RememberedExchange | None":
        """The exchange of a turn, or None if it failed, was stopped or interrupted, or has no question or no answer.
        It has no text if only a graph's state is left of it."""
        question = answer = checkpoint = ""
        images: tuple[str, ...] = ()
        for message in record.messages:
            if message.channel != "final":
                continue
            if message.role == "user":
                question, images = message.text, message.images
            elif message.role == "assistant":
                fields = loads(message.json)
                extras = fields["metadata"].get("extras")
                if isinstance(extras, dict) and ("error" in extras or extras.get("status") == "interrupted"):
                    return None
                answer = text_of(fields["parts"])
                checkpoint = str(extras.get("checkpoint", "")) if isinstance(extras, dict) else ""
        answered = checkpoint or (question and answer)
        return cls.of_texts(record.exchange_id, question, answer, checkpoint, images) if answered else None

    @property
    def items(self) -> tuple[HistoryItem, ...]:
        """The messages. A graph may continue without a question."""
        return (self.question, self.answer) if self.question.text else (self.answer,)

    @classmethod
    def of_texts(
        cls, exchange_id: str, question: str, answer: str, checkpoint: str = "", images: tuple[str, ...] = ()
    ) -> "RememberedExchange":
        """An exchange as it was said, and the state with which a hosted graph ended it."""
        size = _EXCHANGE_BYTES + 2 * (len(question) + len(answer)) + _IMAGE_BYTES * len(images)
        said = HistoryItem("user", question, images=images), HistoryItem("assistant", answer, checkpoint)
        return cls(exchange_id, *said, size)


@dataclass(slots=True, eq=False)
class Loading:
    """A read of a conversation in progress: turns that end meanwhile are added to its result."""

    key: Key
    depth: int
    appended: list[RememberedExchange] = field(default_factory=list)
    dead: bool = False


@dataclass(slots=True)
class _Entry:
    """At most the last `depth` exchanges of a session's live line; `whole` if these are all of it.

    `size` is in bytes.
    """

    depth: int
    whole: bool
    exchanges: list[RememberedExchange]
    used_at: float
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = _ENTRY_BYTES + sum(exchange.size for exchange in self.exchanges)


class HistoryCache:
    """The last exchanges of recently used sessions within `max_bytes`, least recently used out first.

    It is correct only if no other process writes the sessions. `max_bytes` 0 keeps nothing. `clock` is monotonic,
    in seconds.
    """

    def __init__(self, max_bytes: int, depth: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._depth = depth
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._loading: list[Loading] = []
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, exchanges: int) -> list[RememberedExchange] | None:
        """The session's last `exchanges`, oldest first; None if some are not cached."""
        entry = self._entries.get(key)
        if entry is None or (entry.depth < exchanges and not entry.whole):
            self.misses += 1
            return None
        self.hits += 1
        entry.used_at = self._clock()
        self._entries.move_to_end(key)
        return entry.exchanges[max(0, len(entry.exchanges) - exchanges) :]

    def used_within(self, key: Key, seconds: float) -> bool:
        """Whether the session is cached and was used in the last `seconds`."""
        entry = self._entries.get(key)
        return entry is not None and self._clock() - entry.used_at < seconds

    def begin(self, key: Key) -> None:
        """Add a new session, which has no exchange yet, so that the cache will see all of them."""
        self._put(key, _Entry(self._depth, True, [], self._clock()))

    def load(self, key: Key, depth: int, pending: Iterable[TurnRecord]) -> Loading:
        """Begin a read that will find the last `depth` exchanges, perhaps without the pending ones."""
        loading = Loading(key, depth, [found for record in pending if (found := RememberedExchange.of(record))])
        self._loading.append(loading)
        return loading

    def loaded(self, loading: Loading, stored: Sequence[RememberedExchange]) -> list[RememberedExchange]:
        """Keep and return the result of a read, `stored` (oldest first), with what was appended meanwhile."""
        known = {exchange.exchange_id for exchange in stored}
        exchanges = [*stored, *(exchange for exchange in loading.appended if exchange.exchange_id not in known)]
        if not loading.dead:
            last = exchanges[max(0, len(exchanges) - loading.depth) :]
            self._put(loading.key, _Entry(loading.depth, False, last, self._clock()))
        return exchanges[max(0, len(exchanges) - loading.depth) :]

    def end(self, loading: Loading) -> None:
        """End a read, successful or not."""
        self._loading.remove(loading)

    def append(self, key: Key, record: TurnRecord) -> None:
        """Add an ended turn, if its session is cached or being read. One that began after a message other than the
        newest makes another branch live, however it ended: the session is then read again."""
        if forks_in(record.messages[:1]):
            self.forget(key)
        entry = self._entries.get(key)
        loadings = [loading for loading in self._loading if loading.key == key]
        if entry is None and not loadings:
            return
        exchange = RememberedExchange.of(record)
        if exchange is None:
            return
        for loading in loadings:
            loading.appended.append(exchange)
        if entry is None:
            return
        kept = [*entry.exchanges, exchange]
        whole = entry.whole and len(kept) <= entry.depth
        self._put(key, _Entry(entry.depth, whole, kept[max(0, len(kept) - entry.depth) :], self._clock()))

    def forget(self, key: Key) -> None:
        """Drop what is cached of a session."""
        self._take(key)
        for loading in self._loading:
            if loading.key == key:
                loading.dead = True

    def _put(self, key: Key, entry: _Entry) -> None:
        self._take(key)
        if entry.size > self._max_bytes:
            return
        self._entries[key] = entry
        self.bytes += entry.size
        while self.bytes > self._max_bytes:
            self._take(next(iter(self._entries)))

    def _take(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.size
