"""API keys for tests: stored in the database, as `turnwise key` stores them."""

import time
from typing import Any

import psycopg

from agentic_backend.persist.database import migrate
from backend_kit.auth import KeyRecord, KeyScope, make_key
from backend_kit.settings import Postgres
from tests.support.postgres import Database

ALL = frozenset(KeyScope) - {KeyScope.ACT_AS}


def new_key(owner: str = "ann", scopes: frozenset[KeyScope] = ALL, **fields: Any) -> tuple[str, KeyRecord]:
    """A key of the owner's, and its record."""
    shown, parsed = make_key()
    fields = {"created_at": time.time(), "expires_at": None, **fields}
    return shown, KeyRecord(parsed.id, parsed.digest, owner, owner, "a test's", scopes, **fields)


def store_key(database: Database, record: KeyRecord) -> None:
    """Insert a record."""
    values = {
        **{name: getattr(record, name) for name in ("id", "digest", "owner", "owner_name", "name", "namespace")},
        **{name: _listed(getattr(record, name)) for name in ("scopes", "agents", "libraries", "groups", "roles")},
        "rate_per_min": record.rate_per_min,
        "expires_at": record.expires_at,
    }
    columns = ", ".join(values)
    places = ", ".join("to_timestamp(%(expires_at)s)" if name == "expires_at" else f"%({name})s" for name in values)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"INSERT INTO api_key ({columns}) VALUES ({places})", values)  # noqa: S608 - our names


def stored_key(database: Database, owner: str = "ann", scopes: frozenset[KeyScope] = ALL, **fields: Any) -> str:
    """A key that the services on this database take."""
    shown, record = new_key(owner, scopes, **fields)
    store_key(database, record)
    return shown


def revoke_key(database: Database, key: str) -> None:
    """Revoke a key as another process does: the services are not told."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("UPDATE api_key SET revoked_at = now() WHERE id = %s", (key.split("_")[1],))


def with_keys(database: Database) -> Database:
    """A database of knowledge flow's alone, with the table of keys."""
    migrate(Postgres.model_validate(database.settings()))
    return database


def _listed(value: Any) -> Any:
    return None if value is None else sorted(value)
