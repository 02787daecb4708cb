"""The fleet as one piece for the lifespan: built, started, served and left together."""

import asyncio
import contextlib
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.elsewhere import FleetTurns, OwnTurns
from agentic_backend.fleet.leases import FleetLeases
from agentic_backend.fleet.membership import FleetRules, Membership, Presence, instance_id
from agentic_backend.fleet.statements import INSTANCES
from agentic_backend.fleet.takeover import Takeover
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.peers.mirror import Peers
from agentic_backend.peers.siblings import Siblings
from agentic_backend.persist.persistence import Persistence
from agentic_backend.persist.shares import SharedLimits
from agentic_backend.settings import AgenticSettings
from backend_kit.aio import TaskRegistry


class Fleet:
    """What makes this process one of several instances: `leases`, `turns` (Elsewhere), `takeover` (CutOffTurns) and
    `limits`.

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
        self._mirrored = self._alive = 0
        self.peers = Peers(settings.app.base_url, siblings)
        self.leases = FleetLeases(persistence.queries, self.membership, persistence.cache, persistence.pending)
        self.takeover = Takeover(
            persistence.queries, self.membership, self.leases, persistence.log, self._note_takeover
        )
        self.turns = FleetTurns(
            persistence.queries,
            self.membership,
            self.leases,
            self.takeover,
            self.peers,
            persistence.pending,
            persistence.store,
            tasks,
            self._note_mirrored,
        )
        me, dead_s = identity.id, self.membership.rules.dead_s
        self.limits = SharedLimits(persistence.queries, me, dead_s, self.turns.say_full)

    def start(self, turns: OwnTurns) -> None:
        """Join the others, once the schema is known. `turns` are those of this process."""
        self.turns.serve(turns)
        self.turns.on_full = self.limits.note_full
        self.membership.on_deaf = self._note_deaf
        self._tasks.spawn("fleet-renewal", self._renew, restart=True, essential=True)
        self._tasks.spawn("fleet-watch", self.membership.watch, restart=True, essential=True)
        self._tasks.spawn("fleet-asks", self.leases.write_asks, restart=True, essential=True)
        self._tasks.spawn("fleet-recovery", self.takeover.recover, restart=True)
        self._tasks.spawn("fleet-limits", self.limits.write, restart=True, essential=True)
        self._tasks.spawn("fleet-count", self._count, restart=True)
        self._tasks.spawn("fleet-takeover", self.takeover.look_for_dead, restart=True, essential=True)

    def begin_drain(self) -> None:
        """Take no more turns of the dead."""
        self.membership.draining = True

    def dependency(self) -> dict[str, Any]:
        """The state of the fleet, for the body of /ready."""
        return {"status": "up" if self.membership.valid else "down", "instances": self._alive}

    async def leave(self) -> None:
        """Be gone for the others. After the last write; while the spool has some, its sessions wait for it."""
        await self.peers.aclose()
        if not (self.membership.identity.keeps_spool and self._log.pending):
            await self.membership.leave()

    async def forget_spool(self, directory: Path) -> None:
        """Let others take the turns of an instance whose spool has been emptied, and that does not come back."""
        await self.membership.leave(await asyncio.to_thread(instance_id, directory))

    def _note_deaf(self) -> None:
        self.leases.lose_all()
        self.limits.note_all()  # while this instance was away, others may have left out what users hold here

    def _note_takeover(self, silent_s: float) -> None:
        self._metrics.fleet_takeovers.inc()
        self._metrics.fleet_takeover_s.observe(silent_s)

    def _note_mirrored(self, change: int) -> None:
        self._mirrored += change
        self._metrics.fleet_mirrored_turns.set(self._mirrored)

    async def _count(self) -> None:
        """Publish how many instances there are, until cancelled."""
        rules = self.membership.rules
        while True:
            with contextlib.suppress(HistoryUnavailable):
                ((self._alive,),) = await self._queries.fetch("fleet_instances", INSTANCES, {"dead_s": rules.dead_s})
                self._metrics.fleet_instances.set(self._alive)
                self.limits.note_instances(self._alive)
            await asyncio.sleep(rules.beat_s)

    async def _renew(self) -> None:
        await self._database.wait_ready()
        await self.membership.renew()


def own_url(settings: AgenticSettings, address: str) -> str:
    """Where this instance listens; where that is on every address, at the one by which it reaches Postgres."""
    listens = settings.app.address
    try:
        everywhere = ip_address(listens).is_unspecified
    except ValueError:
        everywhere = False
    host = address if everywhere else listens
    return f"http://[{host}]:{settings.app.port}" if ":" in host else f"http://{host}:{settings.app.port}"
