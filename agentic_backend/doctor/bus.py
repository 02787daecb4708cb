"""What carries the messages of a fleet."""

from agentic_backend.settings import AgenticSettings, RedisSettings
from backend_kit.doctor.checks import Check
from backend_kit.doctor.findings import Diagnosis, Health

_WHAT = "bus"
_SLOW_S = 0.5
_AWAY = "fleet.redis: start Redis, or name where it is; Postgres carries its messages until then"
_REFUSED = "fleet.redis.username and its password: it needs +@connection +publish +subscribe and the channels of prefix"
_REFUSED_THERE = "fleet.redis.sentinel_username and its password: it needs +@connection +sentinel"
_FAR = "fleet.redis: a server nearer by; a stop at another instance takes as long"


def bus_check(settings: AgenticSettings) -> Check:
    """The check of `fleet.redis`."""
    return Check(_WHAT, lambda: _look(settings.fleet.redis), _AWAY)


async def _look(redis: RedisSettings | None) -> list[Diagnosis]:
    if redis is None:
        return [Diagnosis(_WHAT, Health.NOT_USED, "fleet.bus: postgres")]
    # Half a second of imports, for fleets that have it.
    from agentic_backend.fleet.redis_bus import BusRefused, SentinelRefused, probe

    try:
        took_s = await probe(redis)
    except SentinelRefused:
        return [Diagnosis(_WHAT, Health.WRONG, "a Sentinel refuses us", _REFUSED_THERE)]
    except BusRefused:
        return [Diagnosis(_WHAT, Health.WRONG, "Redis refuses us", _REFUSED)]
    except OSError:
        return [Diagnosis(_WHAT, Health.AWAY, "Redis does not answer", _AWAY)]
    figure = f"Redis, a word is heard in {took_s * 1e3:.1f} ms"
    if took_s > _SLOW_S:
        return [Diagnosis(_WHAT, Health.SLOW, figure, _FAR)]
    return [Diagnosis(_WHAT, Health.OK, figure)]
