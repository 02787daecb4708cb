"""What an API key allows: scopes, and the table that says which of them each route asks for."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from backend_kit.wire import Code, ServiceError


class KeyScope(StrEnum):
    """One thing that a key may do. Each stands alone: none includes another."""

    ASK = "ask"
    """Hold conversations: make sessions, ask, answer an agent's question, rate, delete."""
    READ = "read"
    """Read the owner's conversations, libraries and documents."""
    SEARCH = "search"
    """Search and rerank passages. An agent that searches needs it beside `ask`."""
    INGEST = "ingest"
    """Add, change and delete attachments, documents and libraries."""
    ADMIN = "admin"
    """Use the roles that the key was given, and make keys that may do no more than it."""
    ACT_AS = "act_as"
    """Name the user for whom a request is made."""


class ScopeMissing(ServiceError):
    """The key lacks a scope, or what it is used for lies outside its agents or libraries. `field` names the scope."""

    code: ClassVar[Code] = Code.FORBIDDEN


class NotOperator(ServiceError):
    """The caller has no role of an operator."""

    code: ClassVar[Code] = Code.FORBIDDEN


class KeyTooFast(ServiceError):
    """The key has used up its requests of this minute."""

    code: ClassVar[Code] = Code.RATE_LIMITED


def _never() -> bool:
    return False


def _unlimited() -> None:
    return None


async def _valid() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Grant:
    """What one key allows, as it was when it was looked up. `agents`, `libraries`: ids; None: all of its owner's.

    `ended` says whether the key has ended meanwhile, by what this process knows of it now. `spend` counts a request,
    and raises `KeyTooFast`. `confirm` does so after looking whether the key is still valid, at most 4 s ago: it
    raises `AuthError` if not, and the service's error of an unreachable database if nobody can tell.
    """

    scopes: frozenset[KeyScope] = frozenset()
    agents: frozenset[str] | None = None
    libraries: frozenset[str] | None = None
    expires_at: float | None = None
    key_id: str = ""
    acting: bool = False
    """Whether the caller is not the key's owner but somebody whom its holder names."""
    ended: Callable[[], bool] = _never
    spend: Callable[[], None] = _unlimited
    confirm: Callable[[], Awaitable[None]] = _valid

    def may(self, scope: KeyScope) -> bool:
        """Whether the key has the scope."""
        return scope in self.scopes

    def may_ask(self, agent_id: str) -> bool:
        """Whether the key may use this agent."""
        return self.agents is None or agent_id in self.agents


class Public:
    """The mark of a route that asks nobody who they are."""


PUBLIC: Final = Public()
ANY: Final = frozenset(KeyScope)
"""The row of a route that takes every key."""

Needs = frozenset[KeyScope] | Public


class RouteScopes:
    """Which scopes each route takes, of which one is enough: `{"GET /agents": {KeyScope.READ}}`, `WS` for sockets.

    A path is the route's template without the base path. What has no row takes no key at all.
    """

    def __init__(self, rows: Mapping[str, Needs], base: str = "") -> None:
        self._rows = {below(base, row): needs for row, needs in rows.items()}

    def needs(self, method: str, template: str) -> Needs:
        """The scopes of a route by its whole template; none that a key has, without a row."""
        return self._rows.get(f"{method} {template}", frozenset())

    def check(self, grant: Grant, method: str, template: str) -> None:
        """Raises `ScopeMissing` unless the key may use the route."""
        needs = self.needs(method, template)
        if not isinstance(needs, Public) and grant.scopes.isdisjoint(needs):
            raise ScopeMissing("the key lacks a scope", field=f"scope:{min(needs)}" if needs else "scope")


def below(base: str, row: str) -> str:
    """A row with its path below the base; `//path` is one that stands beside it."""
    method, _, path = row.partition(" ")
    return f"{method} {path[1:]}" if path.startswith("//") else f"{method} {base}{path}"
