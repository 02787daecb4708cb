"""API keys in Postgres. Their table belongs to the agentic service's migrations; both services read it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from backend_kit.aio.retry import QuietLog
from backend_kit.auth import AuditEvent, KeyRecord, KeyScope
from backend_kit.db.audit import events_parameter, with_events
from backend_kit.db.faults import DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.libpq import connect_args
from backend_kit.db.pool import AnyRow, Pool, PoolMetrics, PoolRules
from backend_kit.settings import Postgres
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

# ruff: noqa: S608 - the columns are a constant of this module

POOL: Final = "keys"
KEY_CONNECTIONS: Final = 2
"""At most, of one process."""
_TIMEOUT_MS: Final = 2000
_WAIT_S: Final = 2.0
_NO_TABLE: Final = "42P01"

_COLUMNS: Final = """id, digest, owner, owner_name, name, scopes, agents, libraries, groups, roles, namespace,
    rate_per_min,
    extract(epoch FROM created_at)::float8 AS created_at, extract(epoch FROM expires_at)::float8 AS expires_at,
    extract(epoch FROM revoked_at)::float8 AS revoked_at, extract(epoch FROM last_used_at)::float8 AS last_used_at"""
FIND: Final = text(f"SELECT {_COLUMNS} FROM api_key WHERE id = ANY(CAST(:ids AS text[]))")
LIST: Final = text(
    f"""SELECT {_COLUMNS} FROM api_key WHERE CAST(:owner AS text) IS NULL OR owner = :owner
    ORDER BY api_key.created_at DESC, id LIMIT :limit"""
)
# Idempotent, as the statement may run twice: a second run finds the row of the first.
CREATE: Final = with_events(
    """INSERT INTO api_key (id, digest, owner, owner_name, name, scopes, agents, libraries, groups, roles, namespace,
        rate_per_min, created_at, expires_at)
    SELECT :id, CAST(:digest AS bytea), CAST(:owner AS text), :owner_name, :name, CAST(:scopes AS text[]),
        CAST(:agents AS text[]), CAST(:libraries AS text[]), CAST(:groups AS text[]), CAST(:roles AS text[]),
        :namespace, CAST(:rate_per_min AS integer), CAST(:created_at AS timestamptz), CAST(:expires_at AS timestamptz)
    WHERE (SELECT count(*) FROM api_key k WHERE k.owner = :owner AND k.id <> :id AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > now())) < CAST(:most AS integer)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name RETURNING id"""
)
REVOKE: Final = with_events(
    """UPDATE api_key SET revoked_at = coalesce(revoked_at, now())
    WHERE id = :id AND (CAST(:owner AS text) IS NULL OR owner = :owner) RETURNING id"""
)
DELETE: Final = with_events("DELETE FROM api_key WHERE id = ANY(CAST(:ids AS text[])) AND owner = :owner RETURNING id")
NOTE: Final = text(
    """UPDATE api_key k SET last_used_at = to_timestamp(used.at)
    FROM unnest(CAST(:ids AS text[]), CAST(:times AS float8[])) AS used (id, at)
    WHERE k.id = used.id AND (k.last_used_at IS NULL OR k.last_used_at < to_timestamp(used.at))"""
)


class PostgresKeys:
    """Implements `KeySource`, and what makes, lists and revokes keys. Each statement runs alone and may run twice."""

    def __init__(self, pool: Pool, unavailable: Callable[[], ServiceError]) -> None:
        """`unavailable` makes the error where Postgres is away."""
        self._pool = pool
        self._unavailable = unavailable
        self._log = QuietLog(logger)

    async def find(self, ids: Sequence[str]) -> list[KeyRecord]:
        """See `KeySource`. Before the agentic service has made the table there are none."""
        return [_record(row) for row in await self._fetch("find_keys", FIND, {"ids": list(ids)}, or_none=True)]

    async def note_use(self, used: Mapping[str, float]) -> None:
        """See `KeySource`."""
        await self._fetch("note_keys", NOTE, {"ids": list(used), "times": list(used.values())})

    async def create(self, record: KeyRecord, most: int, event: AuditEvent) -> bool:
        """Store a new key and the event; False where its owner has `most` valid ones already."""
        values = {
            "id": record.id,
            "digest": record.digest,
            "owner": record.owner,
            "owner_name": record.owner_name,
            "name": record.name,
            "scopes": sorted(record.scopes),
            "agents": None if record.agents is None else sorted(record.agents),
            "libraries": None if record.libraries is None else sorted(record.libraries),
            "groups": list(record.groups),
            "roles": sorted(record.roles),
            "namespace": record.namespace,
            "rate_per_min": record.rate_per_min,
            "created_at": _moment(record.created_at),
            "expires_at": None if record.expires_at is None else _moment(record.expires_at),
            "most": most,
            "audit": events_parameter(event),
        }
        return bool(await self._fetch("create_key", CREATE, values))

    async def list(self, owner: str | None, limit: int) -> list[KeyRecord]:
        """The newest keys of an owner, of everybody with None, revoked and expired ones too."""
        return [_record(row) for row in await self._fetch("list_keys", LIST, {"owner": owner, "limit": limit})]

    async def revoke(self, key_id: str, owner: str | None, event: AuditEvent) -> bool:
        """End a key for good, now, and store the event; that of any owner with None. False where there is none."""
        values = {"id": key_id, "owner": owner, "audit": events_parameter(event)}
        return bool(await self._fetch("revoke_key", REVOKE, values))

    async def delete(self, key_ids: Sequence[str], owner: str, events: Sequence[AuditEvent]) -> int:
        """Delete keys of an owner, and store the events where there was one; how many there were."""
        values = {"ids": list(key_ids), "owner": owner, "audit": events_parameter(*events)}
        return len(await self._fetch("delete_keys", DELETE, values))

    async def _fetch(
        self, op: str, statement: TextClause, parameters: Mapping[str, object], *, or_none: bool = False
    ) -> Sequence[AnyRow]:
        """Run one statement, again if its connection had died while idle. `or_none`: nothing where no table is."""
        try:
            try:
                return await self._execute(op, statement, parameters)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return await self._execute(op, statement, parameters)
        except DatabaseFault as error:
            if or_none and sqlstate_of(error) == _NO_TABLE:
                return ()
            cause = cause_of(error)
            self._log.warning(cause, "%s failed: cause=%s sqlstate=%s", op, cause.value, sqlstate_of(error))
            raise self._unavailable() from None

    async def _execute(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[AnyRow]:
        async with self._pool.connection() as connection:
            return await connection.execute(op, statement, parameters)


def key_pool(settings: Postgres, metrics: PoolMetrics) -> Pool:
    """A pool of its own, opened when the first key comes: a look-up must not wait behind what requests read."""
    recycle_s, pre_ping = settings.pool_recycle, settings.pool_pre_ping
    rules = PoolRules(1, KEY_CONNECTIONS - 1, _WAIT_S, recycle_s, pre_ping, autocommit=True, in_ledger=False)
    args: dict[str, Any] = connect_args("turnwise-keys", settings.connect_timeout, _TIMEOUT_MS)
    return Pool(POOL, settings, rules, metrics, connect_args=args)


def _moment(at: float) -> datetime:
    """The time as the record shows it: to_timestamp rounds some times to another microsecond."""
    return datetime.fromtimestamp(at, UTC)


def _record(row: AnyRow) -> KeyRecord:
    """A row as a record. A scope that a newer version has stored is left out: it allows nothing here."""
    values: dict[str, Any] = dict(row._mapping)
    known = {scope.value for scope in KeyScope}
    values["digest"] = bytes(values["digest"])
    values["scopes"] = frozenset(KeyScope(name) for name in values["scopes"] if name in known)
    for name in ("agents", "libraries"):
        values[name] = None if values[name] is None else frozenset(values[name])
    values["groups"] = tuple(values["groups"])
    values["roles"] = frozenset(values["roles"])
    return KeyRecord(**values)
