"""What the agentic service checks, in the order in which it is reported; here the checks of the servers that it
calls."""

from importlib.metadata import version

from yarl import URL

from agentic_backend.doctor.database import database_checks, most_descriptors
from agentic_backend.doctor.instances import instances_check
from agentic_backend.doctor.models import model_checks
from agentic_backend.doctor.spool import spool_check
from agentic_backend.settings import AgenticSettings, RedisSettings
from backend_kit.auth.verify import LEEWAY_S
from backend_kit.client.json_client import CallFailed
from backend_kit.doctor.checks import Check, Diagnosis, Health, in_thread
from backend_kit.doctor.clocks import clock_finding
from backend_kit.doctor.http import get, readiness, unreached
from backend_kit.doctor.issuer import issuer_check
from backend_kit.doctor.itself import itself_check
from backend_kit.doctor.machine import Machine, Wanted, look_at_machine

_WORKER_MIB = 250
"""A worker with a few hundred streaming clients, without what it remembers (perf log of 2026-11-24)."""
_KNOWLEDGE = "knowledge flow"
_KNOWLEDGE_AWAY = (
    "ai.knowledge_flow_url: start knowledge flow, or name where it is; agents answer without documents until then"
)
_BUS = "bus"
_BUS_SLOW_S = 0.5
_BUS_AWAY = "fleet.redis: start Redis, or name where it is; Postgres carries its messages until then"
_REDIS_REFUSED = (
    "fleet.redis.username and its password: it needs +@connection +publish +subscribe and the channels of prefix"
)
_SENTINEL_REFUSED = "fleet.redis.sentinel_username and its password: it needs +@connection +sentinel"
_BUS_FAR = "fleet.redis: a server nearer by; a stop at another instance takes as long"


def checks_of(settings: AgenticSettings) -> list[Check]:
    """All of them. What the service comes to use beside these is one more function here."""
    return [
        itself_check(settings.app, version("turnwise")),
        *database_checks(settings),
        spool_check(settings),
        *model_checks(settings),
        Check(_KNOWLEDGE, lambda: _look_at_knowledge(URL(settings.ai.knowledge_flow_url) / "ready"), _KNOWLEDGE_AWAY),
        issuer_check(settings.security),
        instances_check(settings),
        bus_check(settings),
        Check("machine", in_thread(lambda: look_at_machine(wanted_of(settings), Machine.here())), "look at its load"),
    ]


def wanted_of(settings: AgenticSettings) -> Wanted:
    """What the service is configured for."""
    workers = settings.app.workers
    return Wanted(
        workers=workers,
        files=most_descriptors(settings),
        files_of="limits.max_sockets, limits.max_turns",
        memory_mib=workers * (_WORKER_MIB + settings.history.cache_mb),
    )


async def _look_at_knowledge(url: URL) -> list[Diagnosis]:
    try:
        reply = await get(url)
    except CallFailed as failure:
        return [unreached(_KNOWLEDGE, url, failure, _KNOWLEDGE_AWAY)]
    found = [readiness(_KNOWLEDGE, url, reply, _KNOWLEDGE_AWAY)]
    if reply.ahead_s is not None:
        harm = f"each service judges tokens by its own clock, with {LEEWAY_S} s of leeway"
        found.append(clock_finding(_KNOWLEDGE, reply.ahead_s, LEEWAY_S, harm))
    return found


def bus_check(settings: AgenticSettings) -> Check:
    """The check of `fleet.redis`, which carries the messages of a fleet."""
    return Check(_BUS, lambda: _look_at_bus(settings.fleet.redis), _BUS_AWAY)


async def _look_at_bus(redis: RedisSettings | None) -> list[Diagnosis]:
    if redis is None:
        return [Diagnosis(_BUS, Health.NOT_USED, "fleet.bus: postgres")]
    # Half a second of imports, for fleets that have it.
    from agentic_backend.fleet.redis_bus import BusRefused, SentinelRefused, probe

    try:
        took_s = await probe(redis)
    except SentinelRefused:
        return [Diagnosis(_BUS, Health.WRONG, "a Sentinel refuses us", _SENTINEL_REFUSED)]
    except BusRefused:
        return [Diagnosis(_BUS, Health.WRONG, "Redis refuses us", _REDIS_REFUSED)]
    except OSError:
        return [Diagnosis(_BUS, Health.AWAY, "Redis does not answer", _BUS_AWAY)]
    figure = f"Redis, a word is heard in {took_s * 1e3:.1f} ms"
    if took_s > _BUS_SLOW_S:
        return [Diagnosis(_BUS, Health.SLOW, figure, _BUS_FAR)]
    return [Diagnosis(_BUS, Health.OK, figure)]
