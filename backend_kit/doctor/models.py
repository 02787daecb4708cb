"""Whether a model's server is there, takes the key and knows the model's name, without asking the model anything."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import SecretStr
from yarl import URL

from backend_kit.client.json_client import CallFailed
from backend_kit.doctor.checks import Diagnosis, Health
from backend_kit.doctor.http import SLOW_MS, HttpReply, get, place, unreached
from backend_kit.wire import InvalidJson, loads

_KEY: Final = (401, 403)
_SHOWS: Final = "key and name show with the first question"


def _ids(body: Any) -> set[str]:
    return {one["id"] for one in body["data"]}


def bearer_key(key: SecretStr | None) -> dict[str, str]:
    """The header in which OpenAI's servers take a key."""
    return {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}


@dataclass(frozen=True, slots=True)
class ModelListing:
    """A server that lists its models by GET: where, with which headers (the key's), and how the names are in its
    answer. `one` is where it tells of a single model, for servers that do not list all."""

    listing: URL
    headers: Mapping[str, str]
    names: Callable[[Any], set[str]] = _ids
    one: Callable[[str], URL] | None = None

    @classmethod
    def of_openai(cls, base: URL, key: SecretStr | None) -> "ModelListing":
        """One that is compatible with OpenAI's; `base` has the version."""
        return cls(base / "models", bearer_key(key), one=lambda name: base / "models" / name)


@dataclass(frozen=True, slots=True)
class ModelKeys:
    """The settings that say where a server is (`url`), its `key`, and the `name` of the model: for what to do."""

    url: str
    key: str
    name: str


async def look_at_models(what: str, server: ModelListing, names: Collection[str], keys: ModelKeys) -> list[Diagnosis]:
    """Whether the server has these models. It is not asked to answer anything, so it costs no tokens."""
    url = server.listing
    try:
        reply = await get(url, server.headers)
        if (refused := _refusal(what, url, reply, keys)) is not None:
            return [refused]
        known = _known(server, reply)
        unknown = [] if known is None else [name for name in sorted(names) if name not in known]
        for name in unknown:
            if not await _knows(server, name):
                return [
                    Diagnosis(what, Health.WRONG, f"{place(url)} has no model {name}", f"{keys.name}: one that it has")
                ]
    except CallFailed as failure:
        return [unreached(what, url, failure, f"{keys.url}: start what is there, or name another address")]
    return [_answered(what, url, reply, listed=known is not None)]


async def look_at_address(what: str, url: URL, remedy: str) -> list[Diagnosis]:
    """Whether anything answers there, whatever it says."""
    try:
        reply = await get(url)
    except CallFailed as failure:
        return [unreached(what, url, failure, remedy)]
    return [_answered(what, url, reply, listed=False)]


def _refusal(what: str, url: URL, reply: HttpReply, keys: ModelKeys) -> Diagnosis | None:
    """What a status says that ends the examination; None where it goes on."""
    if reply.status in _KEY:
        figure = f"{place(url)} refuses the key (HTTP {reply.status})"
        return Diagnosis(what, Health.WRONG, figure, f"{keys.key}: a key that it takes")
    if reply.status == 429:
        return Diagnosis(
            what, Health.SLOW, f"{place(url)} limits our rate (HTTP 429)", "ask its provider for a higher limit"
        )
    if reply.status >= 500:
        return Diagnosis(what, Health.AWAY, f"{place(url)} fails (HTTP {reply.status})", f"its own log, or {keys.url}")
    return None


def _known(server: ModelListing, reply: HttpReply) -> set[str] | None:
    """The names that it lists; None where it has no such list."""
    if reply.status != 200:
        return None
    try:
        return server.names(loads(reply.body))
    except (InvalidJson, LookupError, TypeError):
        return None


async def _knows(server: ModelListing, name: str) -> bool:
    """Whether the server knows a model that it does not list."""
    if server.one is None:
        return False
    reply = await get(server.one(name), server.headers)
    return reply.status == 200


def _answered(what: str, url: URL, reply: HttpReply, *, listed: bool) -> Diagnosis:
    figure = f"{place(url)} answers in {reply.ms:.0f} ms; {'it has the models' if listed else _SHOWS}"
    if reply.ms > SLOW_MS:
        return Diagnosis(
            what, Health.SLOW, figure, "a first token comes no sooner: look at the way to the server, and at it"
        )
    return Diagnosis(what, Health.OK, figure)
