"""What libpq is told of each connection: deadlines, keepalives, durability. Imports nothing that is slow to load."""

STATEMENT_TIMEOUT_MS = 5000


def connect_args(
    application_name: str, connect_timeout_s: int, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS
) -> dict[str, str | int]:
    """Deadlines, and keepalives so that a peer which vanished is noticed within seconds."""
    return {
        "application_name": application_name,
        "connect_timeout": connect_timeout_s,
        "options": f"-c statement_timeout={statement_timeout_ms} -c synchronous_commit=on -c timezone=UTC",
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": 6000,
    }
