"""The schema of an index: made once, by whoever comes first, and refused when it is newer than the program."""

import asyncio
from uuid import uuid4

import pytest

from backend_kit.db.audit import DROP_AUDIT
from backend_kit.db.schema import SchemaTooNew, newest_revision
from backend_kit.settings import Postgres
from knowledge_flow_backend.errors import IndexUnavailable
from knowledge_flow_backend.index.database import SCRIPTS, migrate
from tests.knowledge_flow_backend.corpus import INDEX, Corpus
from tests.support.ports import free_port
from tests.support.postgres import Database


@pytest.fixture
def database(empty_database: Database) -> Database:
    """One that knows nothing of us yet."""
    return empty_database


async def test_processes_that_start_together_migrate_once(database: Database) -> None:
    settings = Postgres.model_validate(database.settings())
    revisions = await asyncio.gather(
        *(asyncio.to_thread(migrate, settings, name) for name in (INDEX, INDEX, INDEX, "another"))
    )
    assert len(set(revisions)) == 1


@pytest.mark.parametrize(
    ("engine", "dimension", "made"),
    [("pgvector", 384, True), ("pgvector", 641, False), ("opensearch", 384, False), (None, 0, False)],
)
async def test_an_index_of_before_gets_its_vectors_alone(
    corpus: Corpus, database: Database, engine: str | None, dimension: int, made: bool
) -> None:
    for statement in DROP_AUDIT:
        corpus.sql(statement)
    corpus.sql("UPDATE alembic_version SET version_num = '0006'")
    if engine is not None:
        row = {"engine": engine, "dimension": dimension}
        corpus.sql(
            "INSERT INTO index_info (embedding_model, dimension, engine) VALUES ('m', %(dimension)s, %(engine)s)", row
        )
    await asyncio.to_thread(migrate, Postgres.model_validate(database.settings()), INDEX)
    assert corpus.sql("SELECT count(*) FROM pg_indexes WHERE indexname = 'chunks_vectors'") == [(int(made),)]


async def test_a_newer_schema_is_refused_for_good(corpus: Corpus, database: Database) -> None:
    corpus.sql("UPDATE alembic_version SET version_num = '9999'")
    corpus.sql("UPDATE schema_works_from SET revision = '9999'")
    with pytest.raises(SchemaTooNew, match="revision 9999"):
        await asyncio.to_thread(migrate, Postgres.model_validate(database.settings()), INDEX)
    async with Corpus.on(database) as other:
        assert not other.database.ready
        assert other.database.state.status == "refused"
        with pytest.raises(IndexUnavailable):
            await other.search("anything")


async def test_a_newer_schema_that_this_program_works_with_is_used(corpus: Corpus, database: Database) -> None:
    corpus.sql("UPDATE alembic_version SET version_num = '9999'")
    corpus.sql("UPDATE schema_works_from SET revision = '0008'")
    assert await asyncio.to_thread(migrate, Postgres.model_validate(database.settings()), INDEX) == "9999"


async def test_a_newer_schema_needs_no_right_to_change_it(corpus: Corpus, database: Database) -> None:
    """A role that only uses the tables starts at the revision of its code, and so at one that it works with."""
    role = f"plain_{uuid4().hex}"
    settings = Postgres.model_validate({**database.settings(), "username": role, "password": "p"})
    corpus.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    corpus.sql(f'GRANT USAGE ON SCHEMA "{INDEX}" TO {role}')
    corpus.sql(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{INDEX}" TO {role}')
    try:
        assert await asyncio.to_thread(migrate, settings, INDEX) == newest_revision(SCRIPTS)
        corpus.sql("UPDATE alembic_version SET version_num = '9999'")
        assert await asyncio.to_thread(migrate, settings, INDEX) == "9999"
    finally:
        corpus.sql(f"DROP OWNED BY {role}")
        corpus.sql(f"DROP ROLE {role}")


async def test_a_database_that_is_away_is_waited_for(corpus: Corpus, database: Database) -> None:
    away = Database(database.host, free_port(), database.database, database.username)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), Corpus.on(away):
            pytest.fail("there is no server")  # pragma: no cover


async def test_every_wait_and_statement_is_counted(corpus: Corpus) -> None:
    def counted(pool: str, op: str) -> float | None:
        return corpus.kpi.registry.get_sample_value("app_db_statement_seconds_count", {"pool": pool, "op": op})

    await corpus.put("doc", "text")
    assert (counted("ingest", "copy_chunks"), counted("ingest", "commit")) == (1.0, 1.0)
    await corpus.search("text", "strict")
    assert counted("main", "strict") == 1.0
    stats = corpus.database.main.stats()
    assert (stats.in_use, stats.waiting, stats.opened) == (0, 0, 1)
