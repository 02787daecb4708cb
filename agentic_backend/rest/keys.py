"""REST routes of API keys: created, listed and revoked by their owners; operators see and revoke everybody's."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Depends, HTTPException, Query
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from agentic_backend.errors import Conflict, Forbidden
from backend_kit.auth import (
    ApiKeys,
    AuditAction,
    AuditEvent,
    Grant,
    Identity,
    KeyRecord,
    KeyScope,
    ScopeMissing,
    make_key,
)
from backend_kit.wire import storable

MAX_KEYS: Final = 100
"""Valid keys of one owner."""
DEFAULT_DAYS: Final = 90
_MAX_LISTED: Final = 1000
_DAY_S: Final = 86_400.0

_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80), AfterValidator(storable)]
_Id = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(storable)]
_KeyId = Annotated[str, PathParam(pattern="^[a-z0-9]{12}$")]


class KeyStore(Protocol):
    """Stores keys. All methods raise a `ServiceError` where the database is away."""

    async def create(self, record: KeyRecord, most: int, event: AuditEvent) -> bool:
        """Store a new key and the event; False where its owner has `most` valid ones already."""
        ...

    async def list(self, owner: str | None, limit: int) -> list[KeyRecord]:
        """The newest keys of an owner, of everybody with None, revoked and expired ones too."""
        ...

    async def revoke(self, key_id: str, owner: str | None, event: AuditEvent) -> bool:
        """Revoke a key for good, and store the event; with None, a key of any owner. False if there is none."""
        ...

    async def delete(self, key_ids: Sequence[str], owner: str, events: Sequence[AuditEvent]) -> int:
        """Delete keys of an owner, and store the events; how many there were."""
        ...


_PLAIN: Final = frozenset({KeyScope.ASK, KeyScope.READ, KeyScope.SEARCH})


class MakeKey(BaseModel):
    """Body of `POST /chatbot/keys`. Leaving out `agents` or `libraries` means all of the owner's, so a misspelled field
    must not be taken for that."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    name: _Name
    scopes: Annotated[frozenset[KeyScope], Field(min_length=1)] = _PLAIN
    agents: Annotated[frozenset[_Id], Field(max_length=100)] | None = None
    libraries: Annotated[frozenset[_Id], Field(max_length=100)] | None = None
    groups: Annotated[frozenset[_Id], Field(max_length=500)] | None = None
    days: Annotated[int, Field(ge=0, le=3650)] = DEFAULT_DAYS
    rate_per_min: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    namespace: Annotated[str, StringConstraints(pattern="^[a-z0-9-]{0,32}$")] = "openwebui"


@dataclass(frozen=True, slots=True)
class KeyServices:
    """What the routes need. `store` and `keys` are None where keys are off. Holders of `operator_roles` may see all
    keys and create those that act for others; None if everybody may. `editor_roles` likewise for changing agents.
    `provider_users`: whether a key may name users of the identity provider."""

    store: KeyStore | None
    keys: ApiKeys | None
    operator_roles: frozenset[str] | None
    editor_roles: frozenset[str] | None
    provider_users: bool

    def operates(self, identity: Identity) -> bool:
        """Whether the caller is an operator."""
        return self.operator_roles is None or not self.operator_roles.isdisjoint(identity.roles)

    def new_record(self, wanted: MakeKey, identity: Identity, now: float) -> tuple[str, KeyRecord]:
        """The key that the caller may have, as it is shown once and as it is stored. Raises `ScopeMissing`, whose
        `field` names what they may not grant."""
        self._expect_grantable(wanted, identity)
        grant = identity.grant or Grant(frozenset(KeyScope))
        acts = KeyScope.ACT_AS in wanted.scopes
        groups = wanted.groups if wanted.groups is not None else (frozenset[str]() if acts else identity.groups)
        shown, parsed = make_key()
        ends = [] if not wanted.days else [now + wanted.days * _DAY_S]
        ends += [] if grant.expires_at is None else [grant.expires_at]
        return shown, KeyRecord(
            id=parsed.id,
            digest=parsed.digest,
            owner=identity.uid,
            owner_name=identity.username,
            name=wanted.name,
            scopes=wanted.scopes,
            agents=_within("agents", wanted.agents, grant.agents),
            libraries=_within("libraries", wanted.libraries, grant.libraries),
            groups=tuple(sorted(groups)),
            roles=self._roles_of(identity) if KeyScope.ADMIN in wanted.scopes else frozenset(),
            namespace=wanted.namespace,
            rate_per_min=wanted.rate_per_min,
            created_at=now,
            expires_at=min(ends, default=None),
        )

    def _expect_grantable(self, wanted: MakeKey, identity: Identity) -> None:
        for scope in sorted(wanted.scopes):
            if not identity.may(scope):
                raise ScopeMissing(field=f"scope:{scope}")
        if KeyScope.ACT_AS in wanted.scopes and not self.operates(identity):
            raise ScopeMissing(field=f"scope:{KeyScope.ACT_AS}")
        may_administer = self.operates(identity) or bool(self._roles_of(identity))
        if KeyScope.ADMIN in wanted.scopes and not may_administer:
            raise ScopeMissing(field=f"scope:{KeyScope.ADMIN}")
        if wanted.groups is not None and not wanted.groups <= set(identity.groups):
            raise ScopeMissing(field="groups")
        if not wanted.namespace and not (self.provider_users and KeyScope.ACT_AS in wanted.scopes):
            raise ScopeMissing(field="namespace")

    def _roles_of(self, identity: Identity) -> frozenset[str]:
        """Those of the caller's roles that mean something here; others stay with them."""
        return identity.roles & ((self.operator_roles or frozenset()) | (self.editor_roles or frozenset()))


def owner_of(caller: Any) -> Callable[..., Awaitable[Identity]]:
    """What a route depends on to be given a caller who has keys. It raises `Forbidden` for a user whom a front end
    names: they have conversations, but no say over the keys of its operator."""

    async def owner(identity: caller) -> Identity:
        if identity.acting:
            raise Forbidden
        assert isinstance(identity, Identity)
        return identity

    return owner


def add_keys(router: APIRouter, services: Callable[[], KeyServices], caller: Any) -> None:
    """Add the three routes. `services()` is called at each request."""

    known = Annotated[Identity, Depends(owner_of(caller))]

    @router.post("/chatbot/keys", status_code=201)
    async def make_api_key(identity: known, body: MakeKey) -> dict[str, Any]:
        """Create a key that may do no more than its creator. `key` is shown only in this response."""
        state = services()
        shown, record = state.new_record(body, identity, time.time())
        event = AuditEvent.by(identity, AuditAction.KEY_MADE, "key", record.id)
        if not await _store(state).create(record, MAX_KEYS, event):
            raise Conflict("too many keys")
        return {"key": shown, **wire(record)}

    @router.get("/chatbot/keys")
    async def list_api_keys(
        identity: known, all_owners: Annotated[bool, Query(alias="all")] = False
    ) -> list[dict[str, Any]]:
        """The caller's keys without their secrets, newest first; with `all` everybody's, for operators."""
        state = services()
        if all_owners and not state.operates(identity):
            raise Forbidden
        return [wire(record) for record in await _store(state).list(None if all_owners else identity.uid, _MAX_LISTED)]

    @router.delete("/chatbot/keys/{key_id}", status_code=204)
    async def revoke_api_key(key_id: _KeyId, identity: known) -> None:
        """Revoke a key of the caller's, as an operator anybody's. Every process refuses it within 5 s, this one now."""
        state = services()
        event = AuditEvent.by(identity, AuditAction.KEY_REVOKED, "key", key_id)
        if not await _store(state).revoke(key_id, None if state.operates(identity) else identity.uid, event):
            raise HTTPException(404, "Key not found.")
        if state.keys is not None:
            state.keys.forget(key_id)


def wire(record: KeyRecord) -> dict[str, Any]:
    """A key as its owner sees it. `id` is the part that the key begins with; the secret is no longer known."""
    return {
        "id": record.id,
        "name": record.name,
        "owner": record.owner,
        "owner_name": record.owner_name,
        "scopes": sorted(record.scopes),
        "agents": None if record.agents is None else sorted(record.agents),
        "libraries": None if record.libraries is None else sorted(record.libraries),
        "groups": list(record.groups),
        "namespace": record.namespace if KeyScope.ACT_AS in record.scopes else None,
        "rate_per_min": record.rate_per_min,
        "created_at": _time(record.created_at),
        "expires_at": _time(record.expires_at),
        "revoked_at": _time(record.revoked_at),
        "last_used_at": _time(record.last_used_at),
    }


def _store(state: KeyServices) -> KeyStore:
    if state.store is None:
        raise HTTPException(403, "API keys are off (security.api_keys.enabled).")
    return state.store


def _within(field: str, wanted: frozenset[str] | None, own: frozenset[str] | None) -> frozenset[str] | None:
    """The limits of a key that was created with a key that has this limit."""
    if own is None or wanted is None:
        return own if wanted is None else wanted
    if not wanted <= own:
        raise ScopeMissing(field=field)
    return wanted


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
