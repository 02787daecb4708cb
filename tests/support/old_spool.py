"""A spool in the form of the program before acknowledgements had a flush of their own (decision 49).

It is written from what that form was, not by code of the service, so that it stays as it was: the file
`spool-000001.sqlite` in WAL mode with `synchronous = FULL` and SQLite's own checkpoints after 1,000 pages; one
transaction a record, flushed, and in a second one the removal of what Postgres has; after each commit the number of
the newest record in the file `newest`, 20 digits, and behind it 20 digits of 0. The last record stays, emptied, where
Postgres has it. `reserve` (8 MiB) and the empty file `lock` are beside it.

    python -m tests.support.old_spool DIRECTORY DONE

reads records from its standard input, one JSON object a line (`kind`, `session_id`, `user_id`, `exchange_id`, `body`),
writes each, removes the first DONE of them, says `written` and waits for the kill with the file open.
"""

import json
import os
import sqlite3
import sys
import time
import zlib
from pathlib import Path

_TABLES = """
CREATE TABLE IF NOT EXISTS record (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, session_id TEXT NOT NULL, user_id TEXT NOT NULL,
    exchange_id TEXT NOT NULL, at REAL NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS dead_letter (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, session_id TEXT NOT NULL, user_id TEXT NOT NULL,
    exchange_id TEXT NOT NULL, at REAL NOT NULL, reason TEXT NOT NULL, body BLOB NOT NULL
) STRICT;
"""
_INSERT = "INSERT OR IGNORE INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_EMPTY = """UPDATE record SET kind = 'done', session_id = '', user_id = '', exchange_id = '', crc = 0, body = x''
WHERE id = ?"""
_RESERVE_BYTES = 8 * 1024 * 1024


def write(directory: Path, done: int) -> sqlite3.Connection:
    """Write what standard input holds; the open file."""
    directory.mkdir(mode=0o700)
    (directory / "lock").touch(0o600)
    (directory / "reserve").write_bytes(bytes(_RESERVE_BYTES))
    connection = sqlite3.connect(directory / "spool-000001.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(_TABLES)
    mark = os.open(directory / "newest", os.O_RDWR | os.O_CREAT, 0o600)
    newest = 0
    for newest, line in enumerate(sys.stdin, 1):
        record = json.loads(line)
        body = record["body"].encode()
        names = [record[name] for name in ("kind", "session_id", "user_id", "exchange_id")]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_INSERT, (newest, *names, time.time(), zlib.crc32(body), body))
        connection.execute("COMMIT")
        os.pwrite(mark, b"%020d%020d" % (newest, 0), 0)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM record WHERE id <= ? AND id < ?", (done, newest))
    if done >= newest:
        connection.execute(_EMPTY, (newest,))
    connection.execute("COMMIT")
    return connection


if __name__ == "__main__":
    held_open = write(Path(sys.argv[1]), int(sys.argv[2]))
    print("written", flush=True)
    time.sleep(3600)
