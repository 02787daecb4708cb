"""The command that deletes old sessions, as cron runs it: what it says, its exit codes, and what it leaves."""

from pathlib import Path

import psycopg
import pytest
import yaml

from agentic_backend.prune import __main__ as prune
from tests.agentic_backend.records import rows
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.processes import ForkedModule


@pytest.fixture
def config(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a service on this database, in force."""
    file = tmp_path / "agentic.yaml"
    write(file, database.settings())
    monkeypatch.setenv("CONFIG_FILE", str(file))
    monkeypatch.setenv("ENV_FILE", "")
    return file


@pytest.fixture
def filled(database: Database, config: Path) -> Database:
    """Three sessions, last used 10, 100 and 200 days ago, of 4 messages each."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for days in (10, 100, 200):
            connection.execute(
                "INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at, used_at)"
                " SELECT %s, 'ada', 'georges', json_build_object('next_rank', 4), now(), now() - %s * interval '1 day'",
                (f"s{days}", days),
            )
    return database


def write(file: Path, postgres: dict[str, str | int]) -> None:
    security = {"user": {"enabled": False}}
    ai = {"default_chat_model": {"name": "mock"}}
    file.write_text(yaml.safe_dump({"security": security, "ai": ai, "storage": {"postgres": postgres}}))


def sessions(database: Database) -> list[str]:
    return [session_id for (session_id,) in rows(database.dsn, "SELECT session_id FROM session ORDER BY 1")]


def test_it_deletes_what_is_older(filled: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert prune.main(["--older-than", "90"]) == 0
    assert capsys.readouterr() == ("deleted 2 sessions unused for 90 days\n", "")
    assert sessions(filled) == ["s10"]
    assert prune.main(["--older-than", "90"]) == 0
    assert capsys.readouterr().out == "deleted 0 sessions unused for 90 days\n"


def test_a_dry_run_deletes_nothing(filled: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert prune.main(["--older-than", "90", "--dry-run"]) == 0
    ((oldest,),) = rows(filled.dsn, "SELECT min(used_at) FROM session")
    said = f"would delete 2 sessions unused for 90 days (8 messages, the oldest since {oldest.isoformat()})\n"
    assert capsys.readouterr() == (said, "")
    assert sessions(filled) == ["s10", "s100", "s200"]
    assert prune.main(["--older-than", "300", "--dry-run"]) == 0
    assert capsys.readouterr().out == "would delete 0 sessions unused for 300 days (0 messages)\n"


@pytest.mark.parametrize("arguments", [[], ["--older-than", "0"], ["--older-than", "x"], ["--older-than", "36501"]])
def test_arguments_that_cannot_be_used_end_with_2(
    filled: Database, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        prune.main(arguments)
    assert ended.value.code == 2
    assert "--older-than" in capsys.readouterr().err
    assert sessions(filled) == ["s10", "s100", "s200"]


def test_a_configuration_that_cannot_be_used_ends_with_2(config: Path) -> None:
    config.write_text("storage: 1\n")
    with pytest.raises(SystemExit) as ended:
        prune.main(["--older-than", "90"])
    assert ended.value.code == 2


def test_without_postgres_it_says_so_and_ends_with_1(
    config: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    write(config, {**database.settings(), "port": port})
    assert prune.main(["--older-than", "90"]) == 1
    said = f"deleted 0 sessions, then Postgres at {database.host}:{port} failed: cause=connection sqlstate=None\n"
    assert capsys.readouterr() == ("", said)


def test_a_database_without_the_schema_ends_with_1(
    config: Path, empty_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    write(config, empty_database.settings())
    assert prune.main(["--older-than", "90", "--dry-run"]) == 1
    assert "cause=statement sqlstate=42P01" in capsys.readouterr().err


def test_as_a_process(filled: Database) -> None:
    with ForkedModule("agentic_backend.prune", "--older-than", "150") as process:
        assert process.wait() == 0
    assert process.output == "deleted 1 sessions unused for 150 days\n"
    assert sessions(filled) == ["s10", "s100"]
