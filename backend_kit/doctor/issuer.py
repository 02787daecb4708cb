"""Whether the issuer of tokens publishes keys that can be used, and its clock."""

import time
from typing import Any, Final

import aiohttp
from yarl import URL

from backend_kit.auth import IssuerKeys
from backend_kit.auth.keys import IssuerUnfit
from backend_kit.auth.verify import LEEWAY_S
from backend_kit.doctor.checks import Check, Diagnosis, Health
from backend_kit.doctor.clocks import ahead_of, clock_finding
from backend_kit.doctor.http import SLOW_MS, place
from backend_kit.settings import Security

_WHAT: Final = "issuer"
_WHERE: Final = "security.user.realm_url or jwks_url: start the issuer, or name where it is"


def issuer_check(security: Security) -> Check:
    """The check of who signs tokens."""
    return Check(_WHAT, lambda: _look(security), _WHERE)


async def _look(security: Security) -> list[Diagnosis]:
    user = security.user
    if not user.enabled:
        return [Diagnosis(_WHAT, Health.NOT_USED, "authentication is off (security.user.enabled)")]
    if security.hs256_secret is not None or user.realm_url is None:
        return [Diagnosis(_WHAT, Health.NOT_USED, "tokens are signed with a shared secret")]
    keys = IssuerKeys(user.realm_url, algorithm=user.algorithm, jwks_url=user.jwks_url)
    where = place(URL(user.jwks_url or user.realm_url))
    dates: list[str | None] = []
    begun = time.perf_counter()
    try:
        async with aiohttp.ClientSession(
            auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(), trace_configs=[_dates_into(dates)]
        ) as http:
            usable = await keys.fetch(http)
    except (aiohttp.ClientError, OSError):
        return [Diagnosis(_WHAT, Health.AWAY, f"{where} cannot be reached", _WHERE)]
    except IssuerUnfit as unfit:
        return [Diagnosis(_WHAT, Health.WRONG, f"{where}: {unfit.reason}", unfit.remedy)]
    except ValueError:
        return [Diagnosis(_WHAT, Health.WRONG, f"{where} publishes no keys", _WHERE)]
    ms = (time.perf_counter() - begun) * 1e3
    figure = f"{len(usable)} keys for {user.algorithm} at {where}, {ms:.0f} ms"
    slow = Diagnosis(_WHAT, Health.SLOW, figure, "the first tokens wait for it: look at the way to the issuer")
    found = [slow if ms > SLOW_MS else Diagnosis(_WHAT, Health.OK, figure)]
    if (ahead_s := ahead_of(dates[-1] if dates else None, time.time())) is not None:
        found.append(clock_finding(_WHAT, ahead_s, LEEWAY_S, f"tokens are refused beyond {LEEWAY_S} s"))
    return found


def _dates_into(dates: list[str | None]) -> aiohttp.TraceConfig:
    """Keeps the `Date` of each answer."""

    async def ended(_session: aiohttp.ClientSession, _context: Any, end: aiohttp.TraceRequestEndParams) -> None:
        dates.append(end.response.headers.get("Date"))

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(ended)
    return trace
