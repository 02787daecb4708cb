"""The measurements of other instances, asked of them by who is asked here."""

from collections.abc import Mapping
from typing import Any

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.membership import Membership
from agentic_backend.fleet.statements import ALIVE
from agentic_backend.peers.mirror import PeerLost, Peers, TurnNotThere
from agentic_backend.persist.queries import Queries
from backend_kit.db.pool import AnyRow


class FleetViews:
    """Implements `OtherInstances`."""

    def __init__(self, queries: Queries, membership: Membership, peers: Peers) -> None:
        self._queries = queries
        self._membership = membership
        self._peers = peers

    @property
    def me(self) -> str:
        """See `OtherInstances`."""
        return self._membership.identity.id

    async def alive(self) -> list[dict[str, Any]]:
        """See `OtherInstances`."""
        return [
            {"id": row.id, "url": row.url, "draining": row.draining, "here": row.id == self.me}
            for row in await self._rows()
        ]

    async def view(self, instance: str, name: str, query: Mapping[str, str]) -> bytes | None:
        """See `OtherInstances`."""
        row = next((row for row in await self._rows() if row.id == instance), None)
        if row is None or row.url is None:
            return None
        try:
            return await self._peers.view(row.url, row.token, name, dict(query))
        except TurnNotThere:
            return None
        except PeerLost as lost:
            raise HistoryUnavailable(f"the instance does not answer: {lost}", retry_after_s=1.0) from None

    async def _rows(self) -> list[AnyRow]:
        dead_s = self._membership.rules.dead_s
        return list(await self._queries.fetch("alive_instances", ALIVE, {"dead_s": dead_s}))
