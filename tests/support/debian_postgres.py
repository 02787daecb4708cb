"""Debian's Postgres, for the tests that need its extension."""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory


@pytest.fixture
def debian_postgres() -> Iterator[str]:
    """The DSN of a throw-away server with pg_stat_statements, as its superuser."""
    newest = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    directory, port = public_directory("turnwise-debian-pg-"), free_port()
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    who: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    if account:
        os.chown(directory, account.pw_uid, account.pw_gid)
    subprocess.run(
        [newest.with_name("initdb"), "-D", directory / "data", "-U", "postgres", "-A", "trust", "--no-sync"],
        check=True, capture_output=True, cwd=directory, **who,
    )  # fmt: skip
    server = subprocess.Popen(
        [newest, "-D", directory / "data", "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F",
         "-c", "shared_preload_libraries=pg_stat_statements"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory, **who,
    )  # fmt: skip
    dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        _wait_ready(newest.with_name("pg_isready"), port)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
        yield dsn
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
        shutil.rmtree(directory)


def _wait_ready(program: Path, port: int) -> None:
    # pg_isready waits by itself only for one answer; a server that starts answers "rejecting" first.
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        asked = subprocess.run(
            [program, "-h", "127.0.0.1", "-p", str(port), "-t", "5"], capture_output=True, check=False
        )
        if asked.returncode == 0:
            return
        time.sleep(0.1)
    pytest.fail("Debian's Postgres did not start", pytrace=False)
