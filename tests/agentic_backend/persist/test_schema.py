import asyncio
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from alembic.script import ScriptDirectory

from agentic_backend.persist import migrations as agentic_migrations
from agentic_backend.persist.database import LOCK_KEY, migrate
from backend_kit.db.database import DatabaseState
from backend_kit.db.schema import SchemaTooNew, newest_revision
from knowledge_flow_backend.index import migrations as index_migrations
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import BEFORE_FLEETS, rows, settings_for, until_waiting
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

ROOT = Path(__file__).parents[3]
HEAD = newest_revision(Path(agentic_migrations.__file__).parent)
TABLES = {
    "share_link",
    "agent",
    "agent_grant",
    "agent_version",
    "api_key",
    "audit_event",
    "alembic_version",
    "attachment_image",
    "attachment_leftover",
    "feedbacks",
    "instance",
    "session",
    "session_attachments",
    "session_history",
    "session_lease",
    "schema_works_from",
    "user_share",
}


def columns(dsn: str, table: str) -> dict[str, str]:
    found = rows(dsn, "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s", table)
    return dict(found)


@pytest.fixture
def database(empty_database: Database) -> Database:
    """One that knows nothing of us yet."""
    return empty_database


async def test_migration_makes_the_tables_of_the_contract(database: Database) -> None:
    revision = await asyncio.to_thread(migrate, settings_for(database.settings()).storage.postgres)

    tables = {name for (name,) in rows(database.dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    assert tables == TABLES
    assert rows(database.dsn, "SELECT version_num FROM alembic_version") == [(revision,)]
    session = columns(database.dsn, "session")
    assert session["session_data"] == "json"
    assert session["updated_at"] == "timestamp with time zone"
    assert session["version"] == "bigint"
    history = columns(database.dsn, "session_history")
    assert history["parts_json"] == history["metadata_json"] == "jsonb"
    keys = rows(
        database.dsn,
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'session_history'::regclass"
        " AND contype IN ('p', 'u')",
    )
    assert {key for (key,) in keys} == {"PRIMARY KEY (session_id, user_id, rank)", "UNIQUE (session_id, rank)"}


async def test_migration_again_changes_nothing(database: Database) -> None:
    postgres = settings_for(database.settings()).storage.postgres
    first = await asyncio.to_thread(migrate, postgres)
    rows(database.dsn, "INSERT INTO agent (id, name, payload_json) VALUES ('a', 'A', '{}') RETURNING id")

    assert await asyncio.to_thread(migrate, postgres) == first
    assert rows(database.dsn, "SELECT id FROM agent") == [("a",)]


@pytest.mark.parametrize("package", [agentic_migrations, index_migrations], ids=["agentic", "index"])
def test_the_scripts_are_one_line_and_named_after_their_revisions(package: ModuleType) -> None:
    directory = Path(str(package.__file__)).parent
    scripts = ScriptDirectory(str(directory))
    revisions = list(scripts.walk_revisions())
    assert newest_revision(directory) == scripts.get_current_head() == revisions[0].revision
    assert [Path(one.path).name[1:5] for one in revisions] == [one.revision for one in revisions]


@pytest.mark.parametrize("package", [agentic_migrations, index_migrations], ids=["agentic", "index"])
def test_no_script_works_with_programs_that_one_before_it_did_not_work_with(package: ModuleType) -> None:
    revisions = [*ScriptDirectory(str(Path(str(package.__file__)).parent)).walk_revisions()][::-1]
    works_from = [getattr(one.module, "works_from", one.revision) for one in revisions]
    assert works_from == sorted(works_from)
    assert all(oldest <= one.revision for oldest, one in zip(works_from, revisions, strict=True))


async def test_a_start_at_the_newest_revision_does_not_load_alembic(database: Database) -> None:
    program = (
        "import json, sys\n"
        "from agentic_backend.persist.database import migrate\n"
        "from backend_kit.settings import Postgres\n"
        "print(migrate(Postgres.model_validate(json.loads(sys.argv[1]))), 'alembic' in sys.modules)\n"
    )
    argument = settings_for(database.settings()).storage.postgres.model_dump_json()
    said = []
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, argument, cwd=ROOT, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        said.append(out.strip())
    assert said == [f"{HEAD} {loaded}".encode() for loaded in (True, False)]


async def test_processes_that_start_together_migrate_once(database: Database) -> None:
    program = (
        "import json, sys\n"
        "from sqlalchemy.exc import DBAPIError\n"
        "from agentic_backend.persist.database import migrate\n"
        "from backend_kit.settings import Postgres\n"
        "where = Postgres.model_validate(json.loads(sys.argv[1]))\n"
        "while True:\n"
        "    try:\n"
        "        print(migrate(where))\n"
        "        break\n"
        "    except DBAPIError:\n"
        "        pass  # the lock was not free in time: asked for again, as the service does\n"
    )
    argument = settings_for(database.settings()).storage.postgres.model_dump_json()
    with psycopg.connect(database.dsn) as gate:
        # Both wait here, so that they go on at the same moment.
        gate.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, argument, cwd=ROOT, stdout=subprocess.PIPE
            )
            for _ in range(2)
        ]
        await until_waiting(database.dsn, 2)
    results = await asyncio.gather(*(process.communicate() for process in processes))

    assert [process.returncode for process in processes] == [0, 0]
    assert [out.strip() for out, _ in results] == [HEAD.encode()] * 2
    assert rows(database.dsn, "SELECT count(*) FROM alembic_version") == [(1,)]


async def test_leases_of_programs_before_fleets_are_anybodys(database: Database) -> None:
    postgres = settings_for(database.settings()).storage.postgres
    await asyncio.to_thread(migrate, postgres)
    with psycopg.connect(database.dsn) as connection:
        connection.execute(BEFORE_FLEETS)
        connection.execute("UPDATE alembic_version SET version_num = '0009'")
        connection.execute("INSERT INTO session VALUES ('s1', 'ada', 'georges', '{}', now())")
        connection.execute("INSERT INTO session_lease VALUES ('s1', 'an old one', 7, now() + interval '1 hour')")
    await asyncio.to_thread(migrate, postgres)
    leases = rows(database.dsn, "SELECT session_id, holder, fence, exchange_id, ask, runs, deaths FROM session_lease")
    assert leases == [("s1", "an old one", 7, None, None, 0, 0)]


async def test_runs_of_one_ask_that_stand_twice_in_old_histories_are_kept_under_ids_of_their_own(
    database: Database,
) -> None:
    postgres = settings_for(database.settings()).storage.postgres
    await asyncio.to_thread(migrate, postgres)
    with psycopg.connect(database.dsn) as connection:
        connection.execute(BEFORE_FLEETS)
        connection.execute("DROP TABLE api_key")
        connection.execute("DROP INDEX session_history_one_question_an_exchange")
        connection.execute("UPDATE alembic_version SET version_num = '0007'")
        for session_id, user_id, asked in (("s1", "ada", "abac" + "a"), ("s2", "ada", "a"), ("s3", "bob", "aab")):
            connection.execute("INSERT INTO session VALUES (%s, %s, 'georges', '{}', now())", (session_id, user_id))
            for place, exchange_id in enumerate(asked):
                for offset, role, channel in (
                    (0, "user", "final"),
                    (1, "tool", "tool_call"),
                    (2, "assistant", "final"),
                ):
                    connection.execute(
                        "INSERT INTO session_history VALUES (%s, %s, %s, now(), %s, %s, %s, '[]', '{}')",
                        (session_id, user_id, 3 * place + offset, role, channel, exchange_id),
                    )

    await asyncio.to_thread(migrate, postgres)

    for session_id, kept in (("s1", "ab_c_"), ("s2", "a"), ("s3", "a_b")):
        stored = rows(
            database.dsn,
            "SELECT rank, exchange_id FROM session_history WHERE session_id = %s ORDER BY rank",
            session_id,
        )
        assert [rank for rank, _ in stored] == list(range(3 * len(kept)))
        ids = [stored[3 * place][1] for place in range(len(kept))]
        # Each run is whole, under one id, which no other has; the first has the id that was asked.
        assert [exchange_id for _, exchange_id in stored] == [id_ for id_ in ids for _ in range(3)]
        assert len(set(ids)) == len(ids)
        assert all(id_ == was if was != "_" else len(id_) == 36 for id_, was in zip(ids, kept, strict=True))
    with pytest.raises(psycopg.errors.UniqueViolation):
        rows(
            database.dsn,
            "INSERT INTO session_history VALUES ('s2', 'ada', 9, now(), 'user', 'final', 'a', '[]', '{}') RETURNING 1",
        )


def newer(database: Database, works_from: str) -> None:
    """A schema of a program to come."""
    with psycopg.connect(database.dsn) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE schema_works_from SET revision = %s", (works_from,))


async def test_a_newer_schema_that_this_program_works_with_is_used_and_kept(
    database: Database, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    postgres = settings_for(database.settings()).storage.postgres
    await asyncio.to_thread(migrate, postgres)
    assert rows(database.dsn, "SELECT revision FROM schema_works_from") == [("0012",)]
    newer(database, "0015")

    assert await asyncio.to_thread(migrate, postgres) == "9999"
    assert f"at schema revision 9999, this version of the program knows up to {HEAD} and works with it" in caplog.text
    persistence = build(database.settings())
    persistence.start()
    async with asyncio.timeout(PATIENCE_S):
        await persistence.database.wait_ready()
    assert rows(database.dsn, "SELECT version_num FROM alembic_version") == [("9999",)]
    assert rows(database.dsn, "SELECT revision FROM schema_works_from") == [("0015",)]


@pytest.mark.parametrize("works_from", ["9998", None])
async def test_a_newer_schema_is_refused_with_words(database: Database, build: Build, works_from: str | None) -> None:
    postgres = settings_for(database.settings()).storage.postgres
    await asyncio.to_thread(migrate, postgres)
    newer(database, works_from or "9999")
    if works_from is None:  # of a program from before they said so
        with psycopg.connect(database.dsn) as connection:
            connection.execute("DROP TABLE schema_works_from")

    with pytest.raises(SchemaTooNew, match=rf"schema revision 9999.*knows up to {HEAD}.*newer version"):
        await asyncio.to_thread(migrate, postgres)

    states: asyncio.Queue[DatabaseState] = asyncio.Queue()
    persistence = build(database.settings(), on_state=states.put_nowait)
    persistence.start()
    state = await asyncio.wait_for(states.get(), PATIENCE_S)
    assert state.status == "refused"
    assert "9999" in state.reason
    assert not persistence.schema_known
    assert persistence.dependencies()["postgres"]["status"] == "refused"
