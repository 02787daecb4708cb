"""What alembic does below its command line, which is all that it documents."""

from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import create_engine, inspect

REVISION = """
from alembic import op

revision = "{name}"
down_revision = {before!r}


def upgrade() -> None:
    op.execute("CREATE TABLE {name} (id integer)")
"""


@pytest.fixture
def scripts(tmp_path: Path) -> ScriptDirectory:
    versions = tmp_path / "versions"
    versions.mkdir()
    for name, before in (("one", None), ("two", "one")):
        (versions / f"{name}.py").write_text(REVISION.format(name=name, before=before))
    return ScriptDirectory(str(tmp_path))


def test_the_steps_to_a_revision_are_those_after_the_one_that_stands(scripts: ScriptDirectory) -> None:
    """backend_kit/db/schema.py asks `_upgrade_revs` for the steps between two revisions."""
    heads: tuple[tuple[str, ...], ...] = ((), ("one",), ("two",))
    steps = [[step.to_revisions for step in scripts._upgrade_revs("two", now)] for now in heads]  # type: ignore[arg-type]
    assert steps == [[("one",), ("two",)], [("two",)], []]


def test_migrations_run_in_the_transaction_of_a_given_connection(scripts: ScriptDirectory) -> None:
    """backend_kit/db/schema.py runs them by a context of its own (`fn`), under its lock, all or nothing."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        options = {"fn": lambda revision, _context: scripts._upgrade_revs("two", revision)}
        context = MigrationContext.configure(connection, opts=options)
        assert context.get_current_revision() is None
        with Operations.context(context):
            context.run_migrations()
        assert context.get_current_revision() == "two"
        assert connection.in_transaction()
        assert set(inspect(connection).get_table_names()) == {"alembic_version", "one", "two"}
    engine.dispose()


def test_an_unknown_revision_is_a_command_error(scripts: ScriptDirectory) -> None:
    """backend_kit/db/schema.py tells by it that a newer program has migrated the schema."""
    assert scripts.get_current_head() == "two"
    with pytest.raises(CommandError):
        scripts.get_revision("three")
