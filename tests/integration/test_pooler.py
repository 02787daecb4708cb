"""The service behind PgBouncer: it starts where that pools by session, and else says why it does not."""

import pytest
import yaml

from tests.agentic_backend.records import rows
from tests.support.agentic import CLEAN, run_process
from tests.support.pgbouncer import pooled
from tests.support.ports import free_port
from tests.support.processes import ForkedModule
from tests.support.service import configuration, hear_until, merge, say

pytestmark = pytest.mark.pgbouncer

SINGLE = {"persistence": {"ack": "spool"}}
MANY = {"persistence": {"ack": "db", "replicas": "many"}}


@pytest.fixture
def refused(database, mock_llm, tmp_path):
    """A process that is not expected to serve, on the test's database at another port."""

    def make(postgres_port, sections):
        port = free_port()
        settings = merge(configuration("mock", database, mock_llm), sections)
        own = {
            "app": {"port": port},
            "storage": {"postgres": {"port": postgres_port}},
            "persistence": {"spool_dir": str(tmp_path / f"spool-{port}")},
        }
        file = tmp_path / f"{port}.yaml"
        file.write_text(yaml.safe_dump(merge(settings, own)))
        return ForkedModule("agentic_backend", env={"CONFIG_FILE": str(file), **CLEAN})

    return make


def last_words(process):
    (words,) = [line for line in process.output.splitlines() if " CRITICAL " in line]
    return words


@pytest.mark.parametrize("sections", [SINGLE, MANY], ids=["single", "many"])
async def test_a_pooler_by_transaction_ends_the_start_with_words(database, refused, sections):
    with pooled(database, "transaction") as through, refused(through.port, sections) as process:
        assert await process.until(process.wait) == 2
        assert last_words(process).endswith(
            f"a pooler at 127.0.0.1:{through.port} pools by transaction: connect to Postgres directly, or let it pool "
            "by session (PgBouncer: pool_mode = session)"
        )
    assert rows(database.dsn, "SELECT pid FROM pg_locks WHERE locktype = 'advisory'") == []


async def test_a_pooler_that_takes_no_options_ends_the_start_with_words(database, refused):
    by_session = pooled(database, "session", ignore_startup_parameters="")
    with by_session as through, refused(through.port, SINGLE) as process:
        assert await process.until(process.wait) == 2
        assert "ignore_startup_parameters = options" in last_words(process)


@pytest.mark.parametrize("sections", [SINGLE, MANY], ids=["single", "many"])
async def test_a_pooler_by_transaction_that_comes_later_ends_the_service_with_words(database, refused, sections):
    port = free_port()
    with refused(port, sections) as process:
        await process.until(process.wait_for_line, f"Postgres at 127.0.0.1:{port} is not ready")
        await process.until(process.wait_for_line, "Application startup complete")
        with pooled(database, "transaction", port=port):
            assert await process.until(process.wait) == 2
        assert "pools by transaction: connect to Postgres directly" in last_words(process)


@pytest.mark.parametrize("sections", [SINGLE, MANY], ids=["single", "many"])
async def test_a_pooler_by_session_is_served(database, mock_llm, tmp_path, sections):
    with pooled(database, "session", default_pool_size=60) as through:
        settings = merge(configuration("mock", through, mock_llm), sections)
        async with run_process(settings, tmp_path) as service:
            session_id = await service.create_session()
            async with service.native() as socket:
                await say(socket, type="ask", session_id=session_id, agent_id="Georges", message="Hello")
                assert (await hear_until(socket, "final"))[-1]["durable"] in {"spool", "db"}
            assert len(await service.history(session_id)) == 2
