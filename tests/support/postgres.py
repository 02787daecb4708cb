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

from tests.support.ports import free_port
from turnwise.home import closed_to_others
from turnwise.postgres import USER, EmbeddedPostgres


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
        return {**where, "username": self.username, "connect_timeout": 600}


def public_directory(prefix: str) -> Path:
    """A new temporary directory that user nobody can reach, as whom root's Postgres runs. The caller removes it."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o755)
    if os.geteuid() == 0 and closed_to_others(directory):
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
        directory.chmod(0o755)
    return directory


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One server for the whole session, not durable. Stop and restart servers of your own, not this one."""
    directory = public_directory("turnwise-test-pg-")
    server = EmbeddedPostgres(directory, free_port(), durable=False)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


@contextmanager
def new_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A new, empty database of a server, dropped after the block whoever is still connected."""
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield Database(postgres.host, postgres.port, name, USER)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A new, empty database of the session's server for one test."""
    with new_database(postgres) as made:
        yield made
