"""libpq's options for each connection: deadlines, keepalives, durability. Imports nothing that is slow to load."""

from collections.abc import Mapping
from typing import Any, Final

from backend_kit.settings import Postgres

STATEMENT_TIMEOUT_MS: Final = 5000
MIGRATION_TIMEOUT_MS: Final = 600_000

_VANISHED: Final[dict[str, str | int]] = {
    "tcp_keepalives_idle": 3,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 2,
    "tcp_user_timeout": 6000,
}
"""By these the server gives up a client that vanished within 7 s, and with it locks, claims and what it was at: by its
own defaults it takes two hours. That is less than others wait for a claim, or until they call an instance dead."""


def server_args(settings: Postgres) -> dict[str, Any]:
    """Arguments of `psycopg.connect` that say where the database is, and as whom to come. They hold the password."""
    return {
        "host": settings.host,
        "port": settings.port,
        "dbname": settings.database,
        "user": settings.username,
        "password": settings.password.get_secret_value() if settings.password else None,
    }


def connect_args(
    application_name: str,
    connect_timeout_s: int,
    statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    options: Mapping[str, str | int] | None = None,
) -> dict[str, Any]:
    """Arguments of `psycopg.connect`: deadlines, settings of the server (`options`), and keepalives of both sides, so
    that a peer which vanished is noticed within seconds. An option's value must not contain white space.

    Of several hosts, and behind a name that leads to another server after a failover, only one that takes writes is
    connected to: a standby is refused as if it were away (psycopg.OperationalError)."""
    switches = {
        "statement_timeout": statement_timeout_ms,
        "synchronous_commit": "on",
        "timezone": "UTC",
        **_VANISHED,
        **(options or {}),
    }
    return {
        "application_name": application_name,
        "connect_timeout": connect_timeout_s,
        "target_session_attrs": "read-write",
        "options": " ".join(f"-c {name}={value}" for name, value in switches.items()),
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": 6000,
    }
