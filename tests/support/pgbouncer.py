"""Debian's PgBouncer in front of a server of the tests, started and stopped by the test."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg

from backend_kit.parent_death import with_parent_death_signal
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database, public_directory
from tests.support.programs import system_program


@contextmanager
def pooled(database: Database, mode: str, *, port: int | None = None, **settings: str | int) -> Iterator[Database]:
    """The database as it is reached through a pooler of this `pool_mode`, which ends with the block.

    `settings` are further ones of its `[pgbouncer]`. As it comes it refuses our connections: here it ignores `options`.
    """
    directory = public_directory("turnwise-test-pgbouncer-")
    port = free_port() if port is None else port
    process = _start(directory, database, {"pool_mode": mode, "listen_port": port, **settings})
    try:
        _await_ready(process, replace(database, port=port, database="pgbouncer"), directory / "log")
        yield replace(database, port=port)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(directory)


def _start(directory: Path, database: Database, settings: dict[str, str | int]) -> "subprocess.Popen[bytes]":
    (directory / "users").write_text(f'"{database.username}" ""\n')
    pooler = {
        "listen_addr": database.host,
        "unix_socket_dir": "",
        "auth_type": "trust",
        "auth_file": directory / "users",
        "admin_users": database.username,
        "ignore_startup_parameters": "options",
        **settings,
    }
    lines = ["[databases]", f"* = host={database.host} port={database.port}", "[pgbouncer]"]
    file = directory / "pgbouncer.ini"
    file.write_text("\n".join([*lines, *(f"{key} = {value}" for key, value in pooler.items()), ""]))
    program = system_program("pgbouncer")
    assert program is not None
    nobody = pwd.getpwnam("nobody")
    account = (nobody.pw_uid, nobody.pw_gid) if os.geteuid() == 0 else None  # it refuses to run as root
    command = with_parent_death_signal([program, str(file)], signal.SIGTERM, account)
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _await_ready(process: "subprocess.Popen[bytes]", console: Database, log: Path) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(console.dsn).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up_at, log.read_text()
            time.sleep(0.02)
        else:
            return
