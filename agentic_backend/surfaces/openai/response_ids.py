"""Ids of responses: each says where its exchange is, so that nothing has to be remembered between two requests.

Whoever asks for a response is asked about as its session's owner: an id opens nothing by itself.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

_PREFIX: Final = "resp_"
_HEX: Final = 32
_RANK_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class ResponseId:
    """The exchange of a response, `exchange_id` and `session_id` as UUIDs.

    Where an agent asked a person, the exchange is one response, and what it says after each answer another one: that
    has the `rank` of the answer.
    """

    session_id: str
    exchange_id: str
    rank: int | None = None

    def __str__(self) -> str:
        return f"{_PREFIX}{UUID(self.session_id).hex}{UUID(self.exchange_id).hex}{self._suffix}"

    @property
    def key(self) -> str:
        """What the ids of its items have in common: no other response of the user's has it."""
        return f"{UUID(self.exchange_id).hex}{self._suffix}"

    @property
    def _suffix(self) -> str:
        return "" if self.rank is None else f"_{self.rank}"

    @classmethod
    def read(cls, text: str) -> "ResponseId | None":
        """The id in a text, None for one that this door has never made."""
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
