"""The public keys of one issuer: fetched ahead of need, asked for again with restraint, kept while it is away."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import jwt

from backend_kit.aio.retry import Backoff
from backend_kit.auth.identity import Clock
from backend_kit.wire import loads

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class KeyWaits:
    """`fetch_s`: seconds that one fetch may take, discovery included. `find_s`: that a token with an unknown key waits
    for a fetch; a slower answer counts for the next one. `start_s`: the same while the first fetch of the process runs,
    since until then every key is unknown.

    `refresh_s`: how often the keys are fetched again; a key that the issuer withdrew counts for that long.
    `cool_down_s`: how long after a fetch a token with an unknown key does not cause another one.
    `first_retry_s`: after a fetch that failed; doubles each time, up to `cool_down_s`.
    """

    fetch_s: float = 2.0
    find_s: float = 0.08
    start_s: float = 2.5
    refresh_s: float = 300.0
    cool_down_s: float = 30.0
    first_retry_s: float = 1.0


class IssuerUnfit(ValueError):
    """What the issuer publishes cannot be used: the `reason`, and what to do (`remedy`), in words of ours."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class IssuerKeys:
    """Keys by their `kid`. Only `refresh_keys` fetches: `find` waits for it, however many ask at once.

    The address is `jwks_url`, or what the issuer's discovery document names: that must be of the issuer's own origin,
    and the document must be of this issuer. No redirect is followed, and no address from a token is ever used. Where
    a fetch fails the known keys go on (it is tried again after 1 s, doubling to 30 s); only a later answer with at
    least one usable key replaces them. Usable: for signatures, with a `kid`, of the algorithm, RSA from 2048 bits.
    """

    def __init__(
        self,
        issuer: str,
        *,
        algorithm: str = "RS256",
        jwks_url: str | None = None,
        waits: KeyWaits | None = None,
        clock: Clock = perf_counter,
    ) -> None:
        """`issuer` is the `iss` of its tokens, without a slash at its end; `clock` counts the cool-down in seconds."""
        self.issuer = issuer
        self._waits = waits or KeyWaits()
        self._clock = clock
        self.algorithm = algorithm
        self._jwks_url = jwks_url
        self._discovered: str | None = None
        self._keys: dict[str, jwt.PyJWK] = {}
        self._began = float("-inf")
        self._fetching = False
        self._wanted = asyncio.Event()
        self._fetched = asyncio.Event()
        self.reachable: bool | None = None
        """Whether the last fetch succeeded; None before the first has ended."""
        self.hits = self.misses = 0

    async def find(self, kid: str) -> jwt.PyJWK | None:
        """The key of that name. An unknown one may cause a fetch, which is waited for: 80 ms, so that a stranger's
        token holds nothing for longer however slow the issuer is, or 2.5 s while the first one of the process runs.

        Counts as one of the `hits` where it was known at once, else of the `misses`, found or not."""
        key = self._keys.get(kid)
        if key is not None:
            self.hits += 1
            return key
        self.misses += 1
        if self._fetching or self._clock() - self._began >= self._waits.cool_down_s:
            self._wanted.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._waits.start_s if self.reachable is None else self._waits.find_s):
                    await self._fetched.wait()
        return self._keys.get(kid)

    async def refresh_keys(self) -> None:
        """Fetch the keys until cancelled: at once, then every five minutes, and when they are asked for."""
        waits = self._waits
        backoff = Backoff(waits.first_retry_s, waits.cool_down_s, jitter=0.0)
        async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as http:
            while True:
                await self._refresh(http)
                if self.reachable:
                    backoff.reset()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(waits.refresh_s if self.reachable else backoff.next_s()):
                        await self._wanted.wait()

    async def _refresh(self, http: aiohttp.ClientSession) -> None:
        self._began, self._fetching = self._clock(), True
        try:
            async with asyncio.timeout(self._waits.fetch_s):
                self._keys = await self.fetch(http)
            self.reachable = True
        except (aiohttp.ClientError, OSError, ValueError) as failure:  # TimeoutError is an OSError
            self._discovered, self.reachable = None, False
            known = len(self._keys)
            logger.warning("the issuer's keys cannot be fetched (%s); %d known", type(failure).__name__, known)
        finally:
            self._fetching = False
            self._wanted.clear()
            waiting, self._fetched = self._fetched, asyncio.Event()
            waiting.set()

    async def fetch(self, http: aiohttp.ClientSession) -> dict[str, jwt.PyJWK]:
        """What the issuer publishes now: its usable keys by their `kid`, at least one. Raises aiohttp's ClientError or
        OSError where it is away, `IssuerUnfit`, and ValueError for any other answer that is none."""
        url = self._jwks_url or self._discovered
        if url is None:
            discovery = await _get(http, f"{self.issuer}/.well-known/openid-configuration")
            url = self._discovered = self._address_in(discovery)
        entries = (await _get(http, url)).get("keys")
        listed = entries if isinstance(entries, list) else []
        keys = {entry["kid"]: key for entry in listed if (key := self._usable(entry))}
        if not keys:
            known = "security.user.algorithm: what it signs with; a key needs a kid, and for RSA 2048 bits"
            raise IssuerUnfit(f"no usable key for {self.algorithm}", known)
        return keys

    def _address_in(self, discovery: dict[str, Any]) -> str:
        url = discovery.get("jwks_uri")
        same = isinstance(url, str) and urlsplit(url)[:2] == urlsplit(self.issuer)[:2]
        if not isinstance(url, str) or not same or discovery.get("issuer") != self.issuer:
            told = "security.user.realm_url: exactly the iss of its tokens; jwks_url, where its keys are elsewhere"
            raise IssuerUnfit("its discovery document is of another issuer, or names another place", told)
        return url

    def _usable(self, entry: Any) -> jwt.PyJWK | None:
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str) or entry.get("use", "sig") != "sig":
            return None
        if entry.get("alg", self.algorithm) != self.algorithm:
            return None
        try:
            key = jwt.PyJWK(entry, self.algorithm)
            return None if key.Algorithm.check_key_length(key.Algorithm.prepare_key(key.key)) else key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            return None


async def _get(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """The JSON object at `url`, of at most 64 KiB. Raises aiohttp.ClientError or ValueError."""
    async with http.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as response:
        if response.status != 200:
            raise ValueError("not a 200")
        try:
            await response.content.readexactly(MAX_BYTES + 1)
        except asyncio.IncompleteReadError as whole:
            found = loads(whole.partial)
            if isinstance(found, dict):
                return found
        raise ValueError("too long, or no JSON object")
