"""The other instances of the fleet: alive by Postgres, reached from here, in step with this machine's clock."""

import asyncio
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from yarl import URL

from agentic_backend.fleet.probe import InstanceRow, instance_rows
from agentic_backend.peers.relay import VIEWS
from agentic_backend.settings import AgenticSettings
from backend_kit.auth.verify import LEEWAY_S
from backend_kit.client.json_client import CallFailed
from backend_kit.doctor.checks import Check, Diagnosis, Health
from backend_kit.doctor.clocks import clock_finding
from backend_kit.doctor.http import HttpReply, get, place
from backend_kit.doctor.itself import as_version
from backend_kit.wire import InvalidJson, loads

_WHAT: Final = "instances"
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Reached:
    """An instance that lives, what it answered, None where nothing came, and its version, empty where it does not tell
    one."""

    row: InstanceRow
    url: URL | None
    reply: HttpReply | None
    version: str = ""


def instances_check(settings: AgenticSettings) -> Check:
    """The check of all instances in the table of Postgres."""
    return Check(_WHAT, lambda: _look(settings), "fleet.url of those instances, and the way to them")


async def _look(settings: AgenticSettings) -> Sequence[Diagnosis]:
    if settings.persistence.replicas != "many":
        return [Diagnosis(_WHAT, Health.NOT_USED, "persistence.replicas: single")]
    rows = await asyncio.to_thread(instance_rows, settings.storage.postgres)
    if rows is None:
        return []  # Postgres is away, which the check of Postgres tells, or no instance was started on it yet
    alive = [row for row in rows if row.alive]
    reached = await asyncio.gather(*(_reach(row, settings.app.base_url) for row in alive))
    return judge_instances(rows, reached, version("turnwise"))


async def _reach(row: InstanceRow, base: str) -> Reached:
    if row.url is None:
        return Reached(row, None, None)
    url = URL(row.url.rstrip("/") + base + VIEWS + "about")
    try:
        reply = await get(url, {"Authorization": f"Bearer {row.token}"})
    except CallFailed:
        return Reached(row, url, None)
    return Reached(row, url, reply, _version_in(reply))


def _version_in(reply: HttpReply) -> str:
    """The version that an instance reports; empty for one that is too old to report any."""
    try:
        said = loads(reply.body)
    except InvalidJson:
        return ""
    return as_version(said.get("version")) if isinstance(said, dict) else ""


def judge_instances(rows: Sequence[InstanceRow], reached: Sequence[Reached], here: str) -> list[Diagnosis]:
    """What the table and the answers of those that live mean; `here` is the version that is installed."""
    lost = [row for row in rows if row.keeps_spool and not row.alive]
    deaf = [one for one in reached if one.reply is None]
    draining = sum(one.row.draining for one in reached)
    figure = f"{len(reached)} alive" + (f", {draining} draining" if draining else "")
    return [_state(figure, lost, deaf), *_versions(reached, here), *_clocks(reached)]


def _state(figure: str, lost: Sequence[InstanceRow], deaf: Sequence[Reached]) -> Diagnosis:
    if deaf:
        where = _some({place(one.url) if one.url else "an instance without an address" for one in deaf})
        remedy = "fleet.url: where the others reach that instance, and open the port between them"
        return Diagnosis(_WHAT, Health.AWAY, f"{figure}, not reached from here: {where}", remedy)
    if lost:
        remedy = "start it again with its spool: sessions whose turn it ran wait for that (session_recovering)"
        names = _some({row.id for row in lost})
        return Diagnosis(_WHAT, Health.WRONG, f"{figure}, dead with a spool: {names}", remedy)
    return Diagnosis(_WHAT, Health.OK, figure)


def _some(names: Set[str]) -> str:
    """The first of them, and how many there are beside: a row is not for sixty."""
    shown = sorted(names)[:_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _versions(reached: Sequence[Reached], here: str) -> list[Diagnosis]:
    told = Counter(one.version for one in reached if one.version)
    if not told:
        return []
    what = "versions of instances"
    figure = ", ".join(f"{name} at {count}" for name, count in sorted(told.items())) + f", {here} is installed here"
    if set(told) != {here}:
        return [Diagnosis(what, Health.SLOW, figure, "finish the upgrade: restart those of the other version")]
    return [Diagnosis(what, Health.OK, figure)]


def _clocks(reached: Sequence[Reached]) -> list[Diagnosis]:
    """The clock that is furthest away from ours."""
    known = [one.reply.ahead_s for one in reached if one.reply is not None and one.reply.ahead_s is not None]
    if not known:
        return []
    harm = f"each instance judges tokens by its own clock, with {LEEWAY_S} s of leeway"
    return [clock_finding(_WHAT, max(known, key=abs), LEEWAY_S, harm)]
