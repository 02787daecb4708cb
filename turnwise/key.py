"""`turnwise key`: make, list and revoke API keys in the database itself, which needs nobody to sign in.

Anybody who may run it can read and write that database anyway. The database must be running, and the agentic service
must have been started on it once: it creates the table.
"""

import argparse
import asyncio
import os
import string
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr, ValidationError

from backend_kit.auth import AuditAction, AuditEvent, KeyRecord, KeyScope, make_key
from backend_kit.auth.acting import RESERVED
from backend_kit.settings import Postgres
from backend_kit.wire import ServiceError
from turnwise.errors import StartRefused
from turnwise.home import checkout, resource_directory, stored_password
from turnwise.plan import read_configuration, read_plan, section_of
from turnwise.ports import LOOPBACK
from turnwise.run import port_of

if TYPE_CHECKING:
    from backend_kit.db.api_keys import PostgresKeys

_DAY_S: Final = 86_400.0
_MOST: Final = 2**31 - 1
_LISTED: Final = 1000
_LOCAL_USER: Final = "admin"
_COMMAND: Final = "command:key"
"""Who acts, in the audit log."""
"""Who everybody is without authentication."""
_PASSWORDS: Final = ("FRED_POSTGRES_PASSWORD", "TURNWISE_KEYS_PASSWORD")


class _Away(ServiceError):
    """The database does not answer, or has no table of keys."""


class _NoMetrics:
    """Implements `PoolMetrics` by measuring nothing."""

    def db_pool_wait(self, _pool: str) -> "_NoMetrics":
        return self

    def db_statement(self, _pool: str, _name: str) -> "_NoMetrics":
        return self

    @property
    def statements(self) -> "_NoMetrics":
        return self

    def observe(self, seconds: float) -> None:
        """Nothing."""

    def add(self, text: str, seconds: float, rows: int, waited_s: float) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the keys are, and who owns one that names no owner: None where owners sign in."""

    postgres: Postgres
    owner: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the three commands and their flags to the parser."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="the agentic service's file ($CONFIG_FILE)")
    parser.add_argument("--port", metavar="N", help="as given to `turnwise run` ($PORT)")
    commands = parser.add_subparsers(dest="key_command", metavar="COMMAND", required=True)
    create = commands.add_parser("create", help="make a key; it is printed once")
    create.add_argument("name", help="what it is for")
    create.add_argument("--owner", metavar="UID", help="whose key it is: a user's `sub`; without authentication admin")
    create.add_argument("--scopes", default="ask,read,search", help=f"of {', '.join(KeyScope)}; default: %(default)s")
    create.add_argument("--agent", action="append", metavar="ID", help="an agent that it may use; default: all")
    create.add_argument("--library", action="append", metavar="ID", help="a library that it may use; default: all")
    create.add_argument(
        "--group", action="append", metavar="NAME", default=[], help="a group with whose rights it reads"
    )
    create.add_argument("--role", action="append", metavar="NAME", help="with the scope admin; default: admin")
    create.add_argument("--days", type=int, default=90, help="until it expires, 0 = never; default: %(default)s")
    create.add_argument("--rate", type=int, default=0, metavar="N", help="requests a minute, 0 = no limit of its own")
    create.add_argument("--namespace", default="openwebui", help="of the users whom an act_as key names")
    listing = commands.add_parser("list", help="show keys, newest first, without their secrets")
    listing.add_argument("--owner", metavar="UID", help="of this owner alone")
    revoke = commands.add_parser("revoke", help="end a key for good, within 5 s everywhere")
    revoke.add_argument("id", help="the twelve characters between tw_ and the next _")


def run_command(options: argparse.Namespace) -> int:
    """Run one of the commands. Returns 0, or 1 after printing why not."""
    try:
        keys = find_keys(options.config, os.environ, port_of(options.port))
        did: dict[str, Callable[[PostgresKeys], Awaitable[None]]] = {
            "create": lambda store: _create(store, new_record(options, keys.owner, time.time())),
            "list": lambda store: _list(store, options.owner),
            "revoke": lambda store: _revoke(store, options.id),
        }
        asyncio.run(_with_store(keys.postgres, did[options.key_command]))
    except StartRefused as refused:
        print(f"turnwise: {refused}", file=sys.stderr)
        return 1
    return 0


def find_keys(config: Path | None, environ: Mapping[str, str], port: int | None) -> Keys:
    """Read from the agentic service's file where the keys are. Raises `StartRefused`."""
    directory = resource_directory() / "config"
    named = environ.get("CONFIG_FILE")
    file = config or (Path(named) if named else directory / "agentic" / "configuration.yaml")
    data, known = read_configuration(file, environ)
    known |= environ
    security = section_of(data, "security")
    own = section_of(security, "api_keys", "postgres")
    found, password = (own, _PASSWORDS[1]) if own else (section_of(data, "storage", "postgres"), _PASSWORDS[0])
    values = {**found, "password": known[password]} if known.get(password) else dict(found)
    if port is not None and not own:
        knowledge = directory / "knowledge_flow" / "configuration.yaml"
        if (moved := read_plan(file, knowledge, environ, bench=False, port=port).postgres_port) is not None:
            values["port"] = moved
    try:
        postgres = Postgres.model_validate(values)
    except ValidationError:
        raise StartRefused(f"{file}: storage.postgres is not as the service wants it") from None
    if not own and postgres.password is None and postgres.host in LOOPBACK:
        # That of `turnwise run`, which makes a password of its own and tells its services alone.
        made = stored_password(checkout() or Path.cwd(), environ)
        postgres = postgres.model_copy(update={"password": made and SecretStr(made)})
    return Keys(postgres, None if section_of(security, "user").get("enabled", True) else _LOCAL_USER)


def new_record(options: argparse.Namespace, local_user: str | None, now: float) -> tuple[str, KeyRecord]:
    """The key that the flags describe, as it is printed and as it is stored. Raises `StartRefused`."""
    owner = options.owner or local_user
    if not owner:
        raise StartRefused("people sign in here: --owner UID says whose key it is")
    if owner.startswith(RESERVED):
        raise StartRefused(f"an owner is somebody who signs in, not {RESERVED}…")
    named = [name.strip() for name in options.scopes.split(",")]
    if unknown := [name for name in named if name not in set(KeyScope)]:
        raise StartRefused(f"unknown scope {unknown[0]}: {', '.join(KeyScope)}")
    scopes = frozenset(map(KeyScope, named))
    if not 0 <= options.days <= 3650 or options.rate < 0:
        raise StartRefused("--days is 0 to 3650, and --rate is not negative")
    if not _is_namespace(options.namespace):
        raise StartRefused("--namespace has at most 32 of a-z, 0-9 and -")
    shown, parsed = make_key()
    return shown, KeyRecord(
        id=parsed.id,
        digest=parsed.digest,
        owner=owner,
        owner_name=owner,
        name=options.name,
        scopes=scopes,
        agents=None if options.agent is None else frozenset(options.agent),
        libraries=None if options.library is None else frozenset(options.library),
        groups=tuple(options.group),
        roles=frozenset(options.role or ["admin"]) if KeyScope.ADMIN in scopes else frozenset(),
        namespace=options.namespace,
        rate_per_min=options.rate,
        created_at=now,
        expires_at=now + options.days * _DAY_S if options.days else None,
    )


def _is_namespace(name: str) -> bool:
    return len(name) <= 32 and set(name) <= set(string.ascii_lowercase + string.digits + "-")


async def _with_store(postgres: Postgres, do: Callable[["PostgresKeys"], Awaitable[None]]) -> None:
    # SQLAlchemy takes half a second to import, which no other command needs.
    from backend_kit.db.api_keys import PostgresKeys, key_pool

    metrics: Any = _NoMetrics()
    pool = key_pool(postgres, metrics)
    try:
        await do(PostgresKeys(pool, _Away))
    except _Away:
        where = f"{postgres.host}:{postgres.port}"
        raise StartRefused(f"no keys at {where}: start Turnwise on this database first (turnwise run)") from None
    finally:
        await pool.aclose()


def _event(action: AuditAction, key_id: str) -> AuditEvent:
    """Who has the database's password need not be anybody whom the service knows."""
    return AuditEvent(action, "key", key_id, actor=_COMMAND)


async def _create(store: "PostgresKeys", made: tuple[str, KeyRecord]) -> None:
    shown, record = made
    if not await store.create(record, _MOST, _event(AuditAction.KEY_MADE, record.id)):
        raise StartRefused("the key was not stored")
    print(shown)
    ends = "never expires" if record.expires_at is None else f"expires {_day(record.expires_at)}"
    print(f"turnwise: key {record.id} of {record.owner}, {ends}; it is not shown again", file=sys.stderr)


async def _list(store: "PostgresKeys", owner: str | None) -> None:
    now = time.time()
    for record in await store.list(owner, _LISTED):
        used = "never used" if record.last_used_at is None else f"used {_day(record.last_used_at)}"
        scopes = ",".join(sorted(record.scopes))
        print(f"{record.id}  {_state(record, now):<7}  {record.owner}  {scopes}  {used}  {record.name}")


async def _revoke(store: "PostgresKeys", key_id: str) -> None:
    if not await store.revoke(key_id, None, _event(AuditAction.KEY_REVOKED, key_id)):
        raise StartRefused(f"there is no key {key_id}" if len(key_id) <= 12 else "give its twelve characters alone")


def _state(record: KeyRecord, now: float) -> str:
    if record.revoked_at is not None:
        return "revoked"
    return "expired" if record.expires_at is not None and now >= record.expires_at else "valid"


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
