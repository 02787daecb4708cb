"""What the figures of Postgres mean for a service: its speed, its connections, its schema, its clock."""

from dataclasses import dataclass
from typing import Final

from backend_kit.db.probe import NoConnection, ServerFacts, ServerUnanswered, look_at_server
from backend_kit.doctor.checks import Diagnosis, Health
from backend_kit.doctor.clocks import clock_finding
from backend_kit.settings import Postgres

POSTGRES: Final = "postgres"
CONNECTIONS: Final = "connections"
SLOW_ROUND_TRIP_MS: Final = 20.0
AWAY: Final = "storage.postgres: start Postgres, or name where it is (`turnwise run` starts its own)"
_ELSEWHERE: Final = {
    NoConnection.REFUSED: (
        Health.WRONG,
        "refuses the role, its password or the database",
        "storage.postgres.username and database, FRED_POSTGRES_PASSWORD; its own log says which",
    ),
    NoConnection.FULL: (Health.WRONG, "has no connection left", "raise max_connections, or end what holds them"),
    NoConnection.POOLED: (
        Health.WRONG,
        "is a pooler that refuses our connections",
        "connect to Postgres directly, or let it ignore_startup_parameters = options",
    ),
    NoConnection.READ_ONLY: (Health.WRONG, "takes no writes", "storage.postgres.host: name the primary, too"),
    NoConnection.AWAY: (Health.AWAY, "does not answer", AWAY),
}


@dataclass(frozen=True, slots=True)
class Demand:
    """What a service asks of its database: `most` connections of all its processes together, and the `revision` that
    its code knows. The clocks may differ by `apart_s`, else `harm`. `schema` as in `look_at_server`."""

    most: int
    processes: int
    revision: str
    apart_s: float
    harm: str
    schema: str | None = None
    vector: bool = False


def look_at_postgres(settings: Postgres, name: str, demand: Demand) -> list[Diagnosis]:
    """What there is to say of the database. Blocks."""
    where = f"{settings.host}:{settings.port}"
    try:
        facts = look_at_server(settings, name, demand.schema)
    except ServerUnanswered as unanswered:
        state, figure, remedy = _ELSEWHERE[unanswered.why]
        return [Diagnosis(POSTGRES, state, f"{where} {figure}", remedy)]
    return [
        server_finding(where, facts),
        connections_finding(where, facts, demand),
        schema_finding(facts, demand),
        clock_finding(POSTGRES, facts.ahead_s, demand.apart_s, demand.harm),
    ]


def server_finding(where: str, facts: ServerFacts) -> Diagnosis:
    """Its version and its speed."""
    version = f"{facts.version // 10_000}.{facts.version % 10_000}"
    ways = f"{facts.connect_ms:.1f} ms to connect, {facts.round_trip_ms:.2f} ms a round trip"
    figure = f"{version} at {where}, {ways}"
    if facts.round_trip_ms > SLOW_ROUND_TRIP_MS:
        return Diagnosis(POSTGRES, Health.SLOW, figure, "every statement waits that long: bring Postgres nearer")
    return Diagnosis(POSTGRES, Health.OK, figure)


def connections_finding(where: str, facts: ServerFacts, demand: Demand) -> Diagnosis:
    """Whether there are as many as the pools of all processes may open."""
    limits = [f"max_connections {facts.max_connections}", f"reserved {facts.reserved}", f"others have {facts.others}"]
    named = (("of the role", facts.role_limit), ("of the database", facts.database_limit))
    limits += [f"limit {of} {limit}" for of, limit in named if limit >= 0]
    processes = "1 process" if demand.processes == 1 else f"{demand.processes} processes"
    figure = f"{demand.most} at most by {processes}, room for {facts.room} ({', '.join(limits)})"
    told: dict[str, int | str] = {"server": where, "most": demand.most, "room": facts.room}
    if demand.most > facts.room:
        remedy = "raise max_connections, or lower storage.postgres.pool_size, max_overflow or app.workers"
        return Diagnosis(CONNECTIONS, Health.WRONG, figure, remedy, told)
    return Diagnosis(CONNECTIONS, Health.OK, figure, facts=told)


def schema_finding(facts: ServerFacts, demand: Demand) -> Diagnosis:
    """Whether the tables are those of this code."""
    if demand.vector and facts.vector is None:
        return Diagnosis(
            "schema", Health.WRONG, "no pgvector", "install pgvector on that server (postgresql-N-pgvector)"
        )
    if facts.revision is None:
        return Diagnosis("schema", Health.OK, f"none yet: the first start makes revision {demand.revision}")
    if facts.revision > demand.revision:
        figure = f"revision {facts.revision}, this code knows up to {demand.revision}"
        if facts.works_from is not None and facts.works_from <= demand.revision:
            return Diagnosis("schema", Health.OK, f"{figure} and works with it (as all from {facts.works_from} on)")
        return Diagnosis("schema", Health.WRONG, figure, "start the newer version, or restore a backup from before it")
    if facts.revision < demand.revision:
        figure = f"revision {facts.revision}: the next start brings it to {demand.revision}"
        return Diagnosis("schema", Health.OK, figure)
    return Diagnosis("schema", Health.OK, f"revision {facts.revision}")
