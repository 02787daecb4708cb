"""`turnwise key`: made, listed and revoked in the database that the configuration names."""

from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from backend_kit.auth.api_keys import parse_key
from tests.support.ports import free_port
from tests.support.postgres import Database
from turnwise import __main__ as command


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Path:
    return written(tmp_path, database, enabled=False)


def written(place: Path, database: Database, *, enabled: bool, **more: Any) -> Path:
    file = place / "agentic.yaml"
    postgres = {name: value for name, value in database.settings().items() if name != "connect_timeout"}
    security = {"user": {"enabled": enabled}, **more}
    file.write_text(yaml.safe_dump({"security": security, "storage": {"postgres": postgres}}))
    return file


def run(config: Path, *words: str) -> int:
    return command.main(["key", "--config", str(config), *words])


def test_a_key_is_made_listed_and_revoked(config: Path, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--scopes", "ask,search", "--agent", "Rico", "--days", "0", "--rate", "60"]
    assert run(config, "create", "a script", *wanted) == 0
    made = capsys.readouterr()
    parsed = parse_key(made.out.strip())
    assert parsed is not None, "the key alone is on the output"
    assert f"key {parsed.id} of admin, never expires; it is not shown again" in made.err
    assert run(config, "list") == 0
    listed = capsys.readouterr().out
    assert listed == f"{parsed.id}  valid    admin  ask,search  never used  a script\n"
    assert run(config, "list", "--owner", "ann") == 0
    assert capsys.readouterr().out == ""
    assert run(config, "revoke", parsed.id) == 0
    assert run(config, "list") == 0
    assert f"{parsed.id}  revoked" in capsys.readouterr().out
    with psycopg.connect(database.dsn) as connection:
        told = connection.execute("SELECT action, object_id, actor FROM audit_event ORDER BY happened_at").fetchall()
    assert told == [("key_made", parsed.id, "command:key"), ("key_revoked", parsed.id, "command:key")]


def test_where_people_sign_in_a_key_has_an_owner_who_does(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, database, enabled=True)
    assert run(config, "create", "x") == 1
    assert "--owner UID" in capsys.readouterr().err
    assert run(config, "create", "x", "--owner", "via:openwebui:x") == 1
    assert run(config, "create", "x", "--owner", "ann", "--days", "30") == 0
    assert "of ann, expires 20" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["create", "x", "--scopes", "root"],
        ["create", "x", "--days", "-1"],
        ["create", "x", "--rate", "-1"],
        ["create", "x", "--namespace", "A b"],
        ["revoke", "unknown"],
        ["revoke", "tw_abcdefghijkl_x"],
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(config, *words) == 1
    assert capsys.readouterr().err.startswith("turnwise: ")


def test_without_the_table_or_the_server_it_says_what_to_do(
    empty_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = Database("127.0.0.1", free_port(), "none", "nobody")
    for database in (empty_database, nowhere):
        assert run(written(tmp_path, database, enabled=False), "create", "x") == 1
        assert f"no keys at 127.0.0.1:{database.port}: start Turnwise" in capsys.readouterr().err


def test_the_keys_of_a_database_of_their_own_are_found(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"postgres": database.settings()}
    config = written(tmp_path, Database("127.0.0.1", free_port(), "none", "nobody"), enabled=False, api_keys=own)
    assert run(config, "create", "x") == 0
    assert parse_key(capsys.readouterr().out.strip()) is not None
