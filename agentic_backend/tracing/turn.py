"""A turn that has ended, as far as its ledger does not say it."""

from typing import NamedTuple

from backend_kit.kpi import Status


class TracedTurn(NamedTuple):
    """`error` is the code of a failed one, else empty; `parent` the `traceparent` that its ask came with;
    `first_token_ms` counts from its arrival. `question` and `answer` leave the process only where that is asked for."""

    agent_id: str
    session_id: str
    user_id: str
    exchange_id: str
    request_id: str
    status: Status
    error: str
    durable: str
    model: str
    first_token_ms: float | None
    parent: str | None
    question: str
    answer: str

    @property
    def failed(self) -> bool:
        """Whether its end is an error. One that a person stopped has not failed."""
        return self.status in ("error", "timeout")
