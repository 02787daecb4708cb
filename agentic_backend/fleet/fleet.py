"""The fleet as one piece for the lifespan: built, started, served and left together, with its views of the others."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.bus import Bus, PostgresBus
from agentic_backend.fleet.elsewhere import FleetTurns, OwnTurns
from agentic_backend.fleet.leases import FleetLeases
from agentic_backend.fleet.membership import FleetRules, Membership, Presence, instance_id
from agentic_backend.fleet.statements import ALIVE, INSTANCES
from agentic_backend.fleet.takeover import Takeover
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.peers.mirror import PeerLost, Peers, TurnNotThere
from agentic_backend.peers.siblings import Siblings
from agentic_backend.persist.database import Queries
from agentic_backend.persist.persistence import Persistence
from agentic_backend.persist.shares import SharedLimits
from agentic_backend.settings import AgenticSettings, FleetSettings
from backend_kit.aio import TaskRegistry
from backend_kit.db.pool import AnyRow

if TYPE_CHECKING:
    from agentic_backend.fleet.redis_bus import RedisBus

logger = logging.getLogger(__name__)

_NOTIFIED_INSTANCES: Final = 4
_NOTIFIED_A_S: Final = 200.0
"""Up to this many instances or messages a second, Postgres suffices as the bus: it delivers each message to every
instance."""


class Fleet:
    """What makes this process one of several instances: `leases`, `turns` (Elsewhere), `takeover` (CutOffTurns),
    `limits` and `views` (OtherInstances).

    `token` opens its relay to the others, `siblings` are those on this host that share its port. Build it on the event
    loop.
    """

    def __init__(
        self,
        settings: AgenticSettings,
        persistence: Persistence,
        metrics: AgenticMetrics,
        tasks: TaskRegistry,
        *,
        token: str,
        siblings: Siblings | None = None,
        rules: FleetRules | None = None,
    ) -> None:
        identity = Presence(url=settings.fleet.url, token=token)
        spool = persistence.spool
        if spool is not None:
            identity.id, identity.keeps_spool = instance_id(spool.directory), True
        self._log = persistence.log
        self.membership = Membership(
            settings.storage.postgres, identity, own_url=lambda address: own_url(settings, address), rules=rules
        )
        self._database = persistence.database
        self._tasks = tasks
        self._metrics = metrics
        self._queries = persistence.queries
        self._mirrored = self._alive = self._staying = 0
        self._crowded = False
        self.peers = Peers(settings.app.base_url, siblings)
        self.views = FleetViews(persistence.queries, self.membership, self.peers)
        self.leases = FleetLeases(persistence.queries, self.membership, persistence.cache, persistence.pending)
        self.takeover = Takeover(
            persistence.queries,
            self.membership,
            self.leases,
            persistence.log,
            self._note_takeover,
            lookers=lambda: self._staying,
        )
        postgres = PostgresBus(persistence.queries, metrics.fleet_messages("postgres").inc)
        self._redis = self._redis_bus(settings.fleet, postgres)
        bus: Bus = self._redis or postgres
        self.turns = FleetTurns(
            persistence.queries,
            bus,
            postgres,
            self.membership,
            self.leases,
            self.takeover,
            self.peers,
            persistence.pending,
            persistence.store,
            tasks,
            self._note_mirrored,
        )
        dead_s = self.membership.rules.dead_s
        self.limits = SharedLimits(persistence.queries, identity.id, dead_s, self.turns.report_full)

    def start(self, turns: OwnTurns) -> None:
        """Join the fleet, once the schema is known. `turns` are those of this process."""
        self.turns.serve(turns)
        self.turns.on_full = self.limits.note_full
        self.membership.on_deaf = self._note_deaf
        self._tasks.spawn("fleet-renewal", self._renew, restart=True, essential=True)
        self._tasks.spawn("fleet-watch", self.membership.watch, restart=True, essential=True)
        self._tasks.spawn("fleet-asks", self.leases.write_asks, restart=True, essential=True)
        self._tasks.spawn("fleet-recovery", self.takeover.recover, restart=True)
        self._tasks.spawn("fleet-limits", self.limits.write, restart=True, essential=True)
        self._tasks.spawn("fleet-count", self._count, restart=True)
        if self._redis is not None:
            self._tasks.spawn("fleet-bus", self._redis.listen, restart=True)
        self._tasks.spawn("fleet-takeover", self.takeover.look_for_dead, restart=True, essential=True)

    def begin_drain(self) -> None:
        """Stop taking turns of dead instances."""
        self.membership.draining = True

    def dependency(self) -> dict[str, Any]:
        """The state of the fleet, for the body of /ready."""
        return {"status": "up" if self.membership.valid else "down", "instances": self._alive}

    def bus_dependency(self) -> dict[str, Any] | None:
        """The same for Redis, None if Postgres is the bus. While Redis is away Postgres carries everything."""
        return None if self._redis is None else {"status": "up" if self._redis.up else "down"}

    async def leave(self) -> None:
        """Leave the fleet, after the last write; while the spool still has turns, their sessions wait for it."""
        await self.peers.aclose()
        if self._redis is not None:
            await self._redis.aclose()
        if not (self.membership.identity.keeps_spool and self._log.pending):
            await self.membership.leave()

    async def forget_spool(self, directory: Path) -> None:
        """Let others take the turns of an instance whose spool has been emptied and that does not come back."""
        await self.membership.leave(await asyncio.to_thread(instance_id, directory))

    def _redis_bus(self, settings: FleetSettings, postgres: Bus) -> "RedisBus | None":
        if settings.redis is None:
            return None
        # Half a second of imports, for fleets that have it.
        from agentic_backend.fleet.redis_bus import RedisBus

        return RedisBus(
            settings.redis,
            self.membership.identity.id,
            postgres,
            rules=self.membership.rules,
            instances=lambda: self._alive,
            on_payload=self.membership.receive,
            on_deaf=self._note_deaf,
            on_heard=self._metrics.fleet_bus_s.observe,
            on_sent=self._metrics.fleet_messages("redis").inc,
        )

    def _note_deaf(self) -> None:
        self.leases.lose_all()
        self.limits.note_all()  # while this instance was away, others may have left out what its users hold

    def _note_takeover(self, silent_s: float) -> None:
        self._metrics.fleet_takeovers.inc()
        self._metrics.fleet_takeover_s.observe(silent_s)

    def _note_mirrored(self, change: int) -> None:
        self._mirrored += change
        self._metrics.fleet_mirrored_turns.set(self._mirrored)

    async def _count(self) -> None:
        """Publish how many instances there are, until cancelled."""
        rules = self.membership.rules
        notified = self.membership.notified
        while True:
            with contextlib.suppress(HistoryUnavailable):
                ((self._alive, self._staying),) = await self._queries.fetch(
                    "fleet_instances", INSTANCES, {"dead_s": rules.dead_s}
                )
                self._metrics.fleet_instances.set(self._alive)
                self.limits.note_instances(self._alive)
            if self._redis is None:
                self._warn_if_crowded((self.membership.notified - notified) / rules.beat_s)
            self._metrics.fleet_bus_up.set(int(self._redis is None or self._redis.up))
            notified = self.membership.notified
            await asyncio.sleep(rules.beat_s)

    def _warn_if_crowded(self, messages_a_s: float) -> None:
        crowded = self._alive > _NOTIFIED_INSTANCES or messages_a_s > _NOTIFIED_A_S
        if crowded and not self._crowded:
            logger.warning(
                "%d instances tell one another %.0f messages a second by Postgres, each of which goes to each of them;"
                " from %d instances or %.0f messages a second on set fleet.bus: redis",
                self._alive,
                messages_a_s,
                _NOTIFIED_INSTANCES + 1,
                _NOTIFIED_A_S,
            )
        self._crowded = crowded

    async def _renew(self) -> None:
        await self._database.wait_ready()
        await self.membership.renew()


def own_url(settings: AgenticSettings, address: str) -> str:
    """The address on which this instance listens; if that is every address, the one from which it reaches Postgres."""
    listens = settings.app.address
    try:
        everywhere = ip_address(listens).is_unspecified
    except ValueError:
        everywhere = False
    host = address if everywhere else listens
    return f"http://[{host}]:{settings.app.port}" if ":" in host else f"http://{host}:{settings.app.port}"


class FleetViews:
    """The measurements of other instances, fetched by the instance that a client asks. Implements `OtherInstances`."""

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
