"""`turnwise doctor`: the services examine what they need; the command says what they found, and holds its tongue."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from backend_kit.doctor.checks import Diagnosis, Health
from tests.backend_kit.client.server import Handler, serving
from tests.backend_kit.doctor.silence import silent_port
from tests.integration.test_clocks import host_with
from tests.support.mock_llm import MockModel
from tests.support.ports import free_block, free_port
from tests.support.postgres import Database, public_directory
from tests.support.processes import ModuleProcess
from turnwise.doctor import service_of, services_of, without_knowledge_flow
from turnwise.errors import StartRefused
from turnwise.findings import ServiceFindings, decode_findings
from turnwise.home import PASSWORD_FILE
from turnwise.plan import read_plan
from turnwise.postgres import USER, EmbeddedPostgres

pytestmark = pytest.mark.servers

NOTHING: dict[str, str] = dict.fromkeys(
    ("CONFIG_FILE", "ENV_FILE", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "FRED_POSTGRES_PASSWORD"), ""
)
KEY = "sk-of-the-model-nobody-else"
PASSWORD = "of-the-database-nobody-else"
NOWHERE = Database("127.0.0.1", 1, "none", "nobody")


def written(place: Path, database: Database, model: str, **sections: Any) -> Path:
    """The configuration of an agentic service that is not running."""
    first = free_block(2)
    data = {
        "app": {"port": first, "metrics_port": first + 1},
        "security": {"user": {"enabled": False}},
        "ai": {
            "default_chat_model": {"name": "mock", "settings": {"base_url": model}},
            "knowledge_flow_url": f"http://127.0.0.1:{free_port()}/knowledge-flow/v1",
        },
        "storage": {"postgres": database.settings()},
        "persistence": {"spool_dir": str(place / "spool")},
        **sections,
    }
    file = place / "agentic.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def doctor(*arguments: str, **environ: str) -> tuple[int, str]:
    """The exit code and all that it writes."""
    env = {**NOTHING, "TURNWISE_HOME": "/nonexistent", **environ}
    with ModuleProcess("turnwise", "doctor", *arguments, env=env) as process:
        return process.wait(), process.output


async def found(file: Path, **environ: str) -> tuple[int, dict[str, Diagnosis]]:
    """The exit code, and the findings of one service by what they are about."""
    code, said = await asyncio.to_thread(doctor, str(file), "--json", **environ)
    told = json.loads(said)
    assert told["exit_code"] == code
    (section,) = [one for one in told["sections"] if one["title"] not in ("installed", "together")]
    return code, {one["what"]: Diagnosis(**{**one, "state": Health(one["state"])}) for one in section["findings"]}


def test_a_file_with_agents_is_the_agentic_services(tmp_path: Path) -> None:
    agentic = written(tmp_path, NOWHERE, "http://127.0.0.1:1/v1")
    assert service_of(agentic, {}).module == "agentic_backend"
    other = tmp_path / "kf.yaml"
    other.write_text("app: {port: 1}\n")
    assert service_of(other, {}).module == "knowledge_flow_backend"
    with pytest.raises(StartRefused, match="cannot be read"):
        service_of(tmp_path / "none.yaml", {})


def test_the_password_of_turnwise_run_is_for_its_own_postgres_alone(tmp_path: Path) -> None:
    (tmp_path / PASSWORD_FILE).write_text(PASSWORD)
    home = {"TURNWISE_HOME": str(tmp_path)}
    here = written(tmp_path, NOWHERE, "http://127.0.0.1:1/v1")
    assert service_of(here, home).environment["FRED_POSTGRES_PASSWORD"] == PASSWORD
    given = {**home, "FRED_POSTGRES_PASSWORD": "mine"}
    assert service_of(here, given).environment["FRED_POSTGRES_PASSWORD"] == "mine"
    elsewhere = written(tmp_path, Database("db.example", 5432, "x", "x"), "http://127.0.0.1:1/v1")
    assert "FRED_POSTGRES_PASSWORD" not in service_of(elsewhere, home).environment


def test_without_a_file_it_is_what_turnwise_run_would_start(tmp_path: Path) -> None:
    agentic = written(tmp_path, Database("127.0.0.1", 15543, "x", "x"), "http://127.0.0.1:18099/v1")
    knowledge = tmp_path / "kf.yaml"
    knowledge.write_text("app: {port: 18111}\n")
    (tmp_path / PASSWORD_FILE).write_text(PASSWORD)
    environ = {"TURNWISE_HOME": str(tmp_path)}
    plan = read_plan(agentic, knowledge, environ, bench=False, port=9000)
    one, other = services_of(plan, tmp_path, tmp_path, tmp_path)
    assert (one.module, other.module) == ("agentic_backend", "knowledge_flow_backend")
    assert one.environment["TURNWISE_SPOOL_DIR"] == str(tmp_path / "spool")
    assert one.environment["FRED_POSTGRES_PASSWORD"] == other.environment["FRED_POSTGRES_PASSWORD"] == PASSWORD
    # With PORT everything has moved.
    assert yaml.safe_load(one.config.read_text())["app"]["port"] == 9000
    assert one.config.stat().st_mode & 0o077 == 0


def test_nobody_misses_knowledge_flow_where_it_is_not_installed() -> None:
    rows = [Diagnosis("knowledge flow", Health.AWAY, "x", "start it"), Diagnosis("postgres", Health.OK)]
    changed = without_knowledge_flow(ServiceFindings("agentic", "", rows)).findings
    assert [one.state for one in changed] == [Health.NOT_USED, Health.OK]


async def test_where_all_is_well_the_exit_code_is_zero(database: Database, mock_llm: MockModel, tmp_path: Path) -> None:
    async def ready(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ready"})

    async with serving(ready) as url:
        file = written(tmp_path, database, mock_llm.base_url)
        data = yaml.safe_load(file.read_text())
        data["ai"]["knowledge_flow_url"] = f"{url}knowledge-flow/v1"
        file.write_text(yaml.safe_dump(data))
        code, rows = await found(file)
    assert code == 0, rows
    assert {what: one.state for what, one in rows.items() if one.state is Health.NOT_USED} == {
        "service": Health.NOT_USED,
        "issuer": Health.NOT_USED,
        "instances": Health.NOT_USED,
        "bus": Health.NOT_USED,
    }
    assert {"postgres", "connections", "schema", "pooler", "spool", "flush", "model mock", "open files"} <= rows.keys()
    assert not (tmp_path / "spool").exists(), "nothing is made"


async def test_servers_that_never_answer_are_away_and_hold_nothing(tmp_path: Path) -> None:
    async with silent_port() as port:
        silent = Database("127.0.0.1", port, "x", "x")
        file = written(tmp_path, silent, f"http://127.0.0.1:{port}/v1")
        data = yaml.safe_load(file.read_text())
        data["ai"]["knowledge_flow_url"] = f"http://127.0.0.1:{port}/knowledge-flow/v1"
        data["app"]["port"] = port
        data["storage"]["postgres"]["connect_timeout"] = 3600
        data["security"]["user"] = {"enabled": True, "client_id": "x", "realm_url": f"http://127.0.0.1:{port}/realm"}
        data["persistence"]["replicas"] = "many"
        data["persistence"]["ack"] = "spool"
        file.write_text(yaml.safe_dump(data))
        code, rows = await found(file)
    assert code == 1
    away = {what for what, one in rows.items() if one.state is Health.AWAY}
    assert away == {"service", "postgres", "pooler", "model mock", "knowledge flow", "issuer", "instances"}
    assert all(one.remedy for what, one in rows.items() if what in away)
    assert rows["spool"].state is Health.OK


async def test_a_key_that_is_refused_is_wrong(database: Database, tmp_path: Path) -> None:
    async with serving(echoing(401)) as url:
        code, rows = await found(written(tmp_path, database, f"{url}v1"), OPENAI_API_KEY=KEY)
    assert (code, rows["model mock"].state) == (1, Health.WRONG)
    assert "OPENAI_API_KEY" in rows["model mock"].remedy


def echoing(status: int) -> Handler:
    """Says back in every way whatever it is told."""

    async def answer(request: web.Request) -> web.Response:
        told = f"{request.rel_url} {dict(request.headers)}"
        body = {"status": told, "version": {"number": told}, "data": [{"id": told}], "issuer": told, "keys": [told]}
        return web.json_response(body, status=status, headers={"X-Told": KEY})

    return answer


@pytest.mark.parametrize("status", [200, 401, 503])
async def test_nothing_that_it_writes_holds_a_secret(database: Database, tmp_path: Path, status: int) -> None:
    async with serving(echoing(status)) as url:
        file = written(tmp_path, database, f"{url}v1?key={KEY}")
        data = yaml.safe_load(file.read_text())
        data["ai"]["knowledge_flow_url"] = f"{url}knowledge-flow/v1?key={KEY}"
        data["app"]["port"] = int(url.rstrip("/").rpartition(":")[2])
        file.write_text(yaml.safe_dump(data))
        environ = {"OPENAI_API_KEY": KEY, "FRED_POSTGRES_PASSWORD": PASSWORD}
        flags = ((), ("--json",)) if status == 200 else ((),)
        outputs = [await asyncio.to_thread(doctor, str(file), *more, **environ) for more in flags]
    for _, said in outputs:
        assert KEY not in said
        assert PASSWORD not in said
        assert "Traceback" not in said


@pytest.fixture
def guarded() -> Iterator[Database]:
    """A database with a password."""
    directory = public_directory("turnwise-test-guarded-")
    server = EmbeddedPostgres(directory, free_port(), password="right", durable=False)
    try:
        server.start()
        yield Database(server.host, server.port, server.database, USER)
    finally:
        server.stop()
        shutil.rmtree(directory)


async def test_a_wrong_password_is_told_and_not_shown(guarded: Database, tmp_path: Path) -> None:
    file = written(tmp_path, guarded, "http://127.0.0.1:1/v1")
    code, rows = await found(file, FRED_POSTGRES_PASSWORD=PASSWORD)
    assert (code, rows["postgres"].state) == (1, Health.WRONG)
    assert "FRED_POSTGRES_PASSWORD" in rows["postgres"].remedy
    _, rows = await found(file, FRED_POSTGRES_PASSWORD="right")
    assert rows["postgres"].state is Health.OK


@pytest.mark.parametrize("text", ["ai: {defualt_chat_model: {name: x}}", "ai: ["])
def test_a_file_that_cannot_be_used_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "agentic.yaml"
    file.write_text(text)
    code, said = doctor(str(file))
    assert code in (1, 2)
    assert f"{file}:1: " in said
    assert "Traceback" not in said


@pytest.mark.faketime
def test_a_clock_that_is_off_is_told(database: Database, tmp_path: Path) -> None:
    file = written(tmp_path, database, "http://127.0.0.1:1/v1")
    # Of the service alone: with it, Python's own sleep fails in the command that waits for it.
    env = {**NOTHING, "CONFIG_FILE": str(file), **host_with("-26h")}
    with ModuleProcess("agentic_backend.doctor", env=env) as process:
        assert process.wait() == 0
        (clock,) = [one for one in decode_findings(process.output.encode()) if one.what == "clock of postgres"]
    assert clock.state is Health.WRONG
    assert clock.figure.startswith("this machine is 93")
    assert clock.figure.endswith(" s behind")


def test_the_default_files_are_those_of_turnwise_run(tmp_path: Path) -> None:
    code, said = doctor(PORT=str(free_block(8)), TURNWISE_HOME=str(tmp_path))
    assert code == 1, "nothing runs there"
    titles = [line.partition(" (")[0] for line in said.splitlines() if not line.startswith(" ")]
    assert titles[:3] == ["installed", "agentic", "knowledge flow"]
    assert "configuration.yaml" in said
    assert list(tmp_path.iterdir()) == []
