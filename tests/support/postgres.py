"""A throw-away Postgres for the test session, and a fresh database for each test that asks."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from agentic_backend.persist.database import migrate as migrate_agentic
from backend_kit.settings import Postgres
from knowledge_flow_backend.index.database import migrate as migrate_knowledge_flow
from knowledge_flow_backend.settings import VectorStore
from tests.support.ports import free_port
from turnwise.home import closed_to_others
from turnwise.postgres import USER, EmbeddedPostgres

_ROOM_BYTES = 4 << 30
"""For the servers of all workers, each of which takes some hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where a test's own database is: the parts as the keys of `storage.postgres` name them; no password."""

    host: str
    port: int
    database: str
    username: str

    @property
    def dsn(self) -> str:
        """As psycopg wants it."""
        return f"postgresql://{self.username}@{self.host}:{self.port}/{self.database}"

    @property
    def url(self) -> str:
        """As SQLAlchemy wants it."""
        return f"postgresql+psycopg://{self.username}@{self.host}:{self.port}/{self.database}"

    def settings(self) -> dict[str, str | int]:
        """The part of `storage.postgres` that says where, and that only a hang of the server is a failure."""
        where: dict[str, str | int] = {"host": self.host, "port": self.port, "database": self.database}
        return {**where, "username": self.username, "connect_timeout": 600, "pool_timeout": 600}


def public_directory(prefix: str) -> Path:
    """A new temporary directory that user nobody can reach, as whom root's Postgres runs. The caller removes it."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)
    if os.geteuid() == 0 and closed_to_others(directory):
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        directory.chmod(0o755)
    return directory


def directory_in_memory(prefix: str) -> Path:
    """The same in memory where there is room: making and dropping a database costs a disk's file system more CPU than
    it costs Postgres."""
    memory = Path("/dev/shm")  # noqa: S108 - a name of its own, made by mkdtemp
    try:
        room = os.statvfs(memory)
    except OSError:
        return public_directory(prefix)
    # Where user nobody cannot run the programs of our environment, they are copied into the directory.
    if room.f_flag & os.ST_NOEXEC or room.f_bavail * room.f_frsize < _ROOM_BYTES or not os.access(memory, os.W_OK):
        return public_directory(prefix)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=memory))
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One server for the whole session, not durable. Stop and restart servers of your own, not this one."""
    directory = directory_in_memory("turnwise-test-pg-")
    server = EmbeddedPostgres(directory, free_port(), durable=False)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def migrated(postgres: EmbeddedPostgres) -> str:
    """The name of a database of the session's server with the schemas of both services and no row of theirs.

    The tests' own are copies of it: to migrate each costs more CPU than most of the tests do.
    """
    name = "migrated"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    settings = Postgres.model_validate(Database(postgres.host, postgres.port, name, USER).settings())
    migrate_agentic(settings)
    migrate_knowledge_flow(settings, VectorStore().index)
    return name


@contextmanager
def new_database(postgres: EmbeddedPostgres, template: str = "template1") -> Iterator[Database]:
    """A new database of a server, a copy of the template, dropped after the block whoever is still connected."""
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            # By files: a template this small costs a third less than by its log.
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        yield Database(postgres.host, postgres.port, name, USER)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database(postgres: EmbeddedPostgres, migrated: str) -> Iterator[Database]:
    """A new database of the session's server for one test, with the schemas of both services."""
    with new_database(postgres, migrated) as made:
        yield made


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """The same with nothing in it."""
    with new_database(postgres) as made:
        yield made
