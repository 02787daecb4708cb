"""Debian's Postgres twice: a primary, and a standby by streaming replication that is promoted in its place."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString

import psutil
import psycopg
import pytest

from backend_kit.parent_death import with_parent_death_signal
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database, public_directory
from turnwise.postgres import ENVIRONMENT, USER

DATABASE = "turnwise"
SLOT = "standby"
STANDBY = "standby"
_SYNC: LiteralString = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND sync_state = 'sync'"
_ASYNC: LiteralString = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND sync_state = 'async'"
_CAUGHT_UP: LiteralString = """SELECT 1 FROM pg_stat_replication
    WHERE application_name = %s AND state = 'streaming' AND flush_lsn >= pg_current_wal_flush_lsn()"""
_HOSTS = ("127.0.0.1", "127.0.0.2")
"""The service knows one port for all hosts."""


class Server:
    """One server of Debian's, in a directory of its own. Its methods block; start it from a thread that stays."""

    def __init__(self, directory: Path, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.data = directory / host
        self.pids: list[int] = []
        self._binaries = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))
        self._directory = directory
        account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._ids = (account.pw_uid, account.pw_gid) if account else None
        self._process: subprocess.Popen[bytes] | None = None

    def dsn(self, database: str = DATABASE) -> str:
        """The libpq URI of a database of this server alone."""
        return f"postgresql://{USER}@{self.host}:{self.port}/{database}"

    @property
    def running(self) -> bool:
        """Whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    def initdb(self) -> None:
        """Make a new cluster that a standby may follow."""
        # Without a flush: these machines die by the death of their processes, and what those wrote the kernel has.
        self.run(
            "initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"
        )

    def start(self) -> None:
        """Start it on its data, as primary or as standby, and wait until it answers."""
        options = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "150",
        }
        command = [str(self._binaries / "postgres"), "-D", str(self.data)]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        log = self._directory / f"{self.host}.log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                with_parent_death_signal(command, signal.SIGQUIT, self._ids),
                cwd=self._directory, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self._until(self._answers)

    def run(self, program: str, *arguments: str) -> None:
        """Run one of Postgres' programs to its end. Raises CalledProcessError."""
        who: dict[str, Any] = {"user": self._ids[0], "group": self._ids[1], "extra_groups": []} if self._ids else {}
        subprocess.run(
            [str(self._binaries / program), *arguments],
            cwd=self._directory, env=ENVIRONMENT, check=True, capture_output=True, **who,
        )  # fmt: skip

    def execute(self, statement: LiteralString, *parameters: object, database: str = DATABASE) -> list[Any]:
        """Run one statement, in its own transaction; the rows."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """All its processes at once, as where the machine dies: nothing more is sent, nothing is written down."""
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                first = psutil.Process(self._process.pid)
                first.suspend()  # it would start some anew
                all_of_it = [*first.children(recursive=True), first]
                for process in all_of_it:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                # The next start is refused while one of them still holds the shared memory.
                self._until(lambda: all(map(_has_ended, all_of_it)))
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """An orderly end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def receive(self, *, on: bool) -> None:
        """Let a standby receive what the primary writes, or hold it up: the primary keeps it meanwhile."""
        (receiver,) = (
            child for child in psutil.Process(self._pid()).children() if "walreceiver" in " ".join(child.cmdline())
        )
        receiver.resume() if on else receiver.suspend()

    def promote(self) -> None:
        """Make a primary of a standby; it takes writes when this returns."""
        self.execute("SELECT pg_promote(true, 300)", database="postgres")
        self._until(lambda: self.execute("SELECT pg_is_in_recovery()", database="postgres") == [(False,)])

    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self._directory / f"{self.host}.log").read_text()[-2000:])
        try:
            return bool(self.execute("SELECT 1", database="postgres"))
        except psycopg.OperationalError:
            return False

    def _until(self, true: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > give_up:
                raise TimeoutError(f"Postgres at {self.host}:{self.port}")
            time.sleep(0.05)


def _has_ended(process: psutil.Process) -> bool:
    """Whether it holds nothing any more; its parent may not have taken note of it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Replicated:
    """A primary and its standby. Synchronous where the primary waits for it at each commit."""

    def __init__(self, directory: Path) -> None:
        """`directory` is one that user nobody can reach, where root starts it."""
        if os.geteuid() == 0:
            account = pwd.getpwnam("nobody")
            os.chown(directory, account.pw_uid, account.pw_gid)
        port = free_port()
        self.primary, self.standby = (Server(directory, host, port) for host in _HOSTS)

    @property
    def database(self) -> Database:
        """As the service is told of both, always in the same order."""
        return Database(",".join(_HOSTS), self.primary.port, DATABASE, USER)

    def dsn_of(self, database: str) -> str:
        """The libpq URI of a database of the primary."""
        return self.primary.dsn(database)

    def start(self) -> None:
        """Start both, replication asynchronous."""
        self.primary.initdb()
        self.primary.start()
        self.primary.execute(f"CREATE DATABASE {DATABASE}", database="postgres")
        self._follow()

    def fail_over(self, *, lagging: bool = False) -> None:
        """The primary dies, and the standby takes its place; the dead one is the standby then, and does not run.

        What a `lagging` one was held up from receiving it never gets.
        """
        self.primary.kill()
        if lagging:
            self.standby.kill()  # else it would find in its socket what the primary had sent
            self.standby.start()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def rebuild(self) -> None:
        """Make a standby again of the one that died, of a copy of the primary; replication is asynchronous."""
        shutil.rmtree(self.standby.data)
        self._follow()

    def _follow(self) -> None:
        self.primary.execute("SELECT pg_create_physical_replication_slot(%s)", SLOT, database="postgres")
        source = f"{self.primary.dsn('postgres')}?application_name={STANDBY}"
        self.standby.run("pg_basebackup", "-d", source, "-D", str(self.standby.data), "-R", "-X", "stream", "-S", SLOT,
                         "-c", "fast", "--no-sync")  # fmt: skip
        self.standby.start()
        self.caught_up()

    def synchronous(self, *, on: bool) -> None:
        """Have each commit of the primary wait for the standby, or not."""
        self.primary.execute(
            f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY if on else ''}'", database="postgres"
        )
        self.primary.execute("SELECT pg_reload_conf()", database="postgres")
        self._until_standby(_SYNC if on else _ASYNC)

    def caught_up(self) -> None:
        """Wait until the standby has all that the primary has."""
        self._until_standby(_CAUGHT_UP)

    def _until_standby(self, query: LiteralString) -> None:
        """Wait until the query finds the standby, as the primary sees it."""
        give_up = time.monotonic() + PATIENCE_S
        while not self.primary.execute(query, STANDBY, database="postgres"):
            if time.monotonic() > give_up:
                raise TimeoutError(query)
            time.sleep(0.05)

    def stop(self) -> None:
        """End both, whatever they do."""
        self.primary.kill()
        self.standby.kill()


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    """Two servers of the test's own, which run, replication asynchronous. Its tests carry the mark `postgres`."""
    directory = public_directory("turnwise-replicas-")
    servers = Replicated(directory)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
        shutil.rmtree(directory)
