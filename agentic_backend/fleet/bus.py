"""What instances tell one another in addition to what is in Postgres, and by which transports (ADR 81)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from agentic_backend.fleet.statements import CHANNEL, NOTIFY
from agentic_backend.persist.database import Queries
from backend_kit.wire import dumps, loads

Kind = Literal["cancel", "forget", "changed", "full"]
_KINDS: Final = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Message:
    """What one instance tells another, or all (`to` is ""): `cancel` an exchange; `forget` a session, which is being
    deleted; that title or preferences of a session have `changed`; that a user's sockets are too many (`full`)."""

    kind: Kind
    session_id: str
    user_id: str
    exchange_id: str = ""
    to: str = ""
    sender: str = ""

    def encode(self) -> str:
        """JSON. Ids are bounded by the protocol, so it is far below the 8,000 bytes of a NOTIFY."""
        return dumps(
            {
                "kind": self.kind,
                "session": self.session_id,
                "user": self.user_id,
                "exchange": self.exchange_id,
                "to": self.to,
                "from": self.sender,
            }
        ).decode()

    @classmethod
    def decode(cls, payload: str) -> "Message":
        """The reverse of `encode`. Raises ValueError for anything else: newer instances may know more kinds."""
        fields = loads(payload)
        if not isinstance(fields, dict) or fields.get("kind") not in _KINDS:
            raise ValueError("no message of this version")
        texts = [one for one in map(fields.get, ("session", "user", "exchange", "to", "from")) if isinstance(one, str)]
        if len(texts) != 5:
            raise ValueError("a message without its fields")
        return cls(fields["kind"], *texts)


class Bus(Protocol):
    """Carries messages to the instances that run now. Nothing is stored for others, and a message may come twice."""

    async def send(self, message: Message) -> None:
        """Send it to the instance that it names, or to all. Raises `HistoryUnavailable` if that is not possible."""


class PostgresBus:
    """NOTIFY, which each instance hears on the connection of its heartbeat (`Membership`)."""

    def __init__(self, queries: Queries, on_sent: Callable[[], None] = lambda: None) -> None:
        self._queries = queries
        self._on_sent = on_sent

    async def send(self, message: Message) -> None:
        """See `Bus`."""
        await self._queries.fetch("notify", NOTIFY, {"channel": CHANNEL, "message": message.encode()})
        self._on_sent()
