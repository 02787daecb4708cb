"""Tokens and keys that can be recognised, shown to both services everywhere while faults run, and looked for after."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import yaml
from psycopg import sql

from agentic_backend.settings import AgenticSettings
from backend_kit.settings.load import load
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.chaos.careless import DOCUMENT, KF_BASE, MARKS, QUESTION, Careless
from tests.chaos.deployment import Database, Deployment, Size, Stage, stage
from tests.chaos.kills import loss_row
from tests.chaos.load import Habits, create_session
from tests.chaos.rows import Row, at_least, none_of
from tests.support.issuer import CLIENT, Issuer, issuer
from tests.support.odd_agent import odd
from tests.support.ports import free_port
from tests.support.processes import ModuleProcess
from turnwise.postgres import USER

_AGENTIC_KEYS = {"OPENAI_API_KEY": "canary-model-key-5d0e", "FRED_POSTGRES_PASSWORD": "canary-password-77ab"}
_KNOWLEDGE_KEYS = {
    "OPENAI_API_KEY": "canary-embedding-key-1f4c",
    "RERANK_API_KEY": "canary-rerank-key-9b23",
    "FRED_POSTGRES_PASSWORD": "canary-kf-password-3e61",
}
_HIDDEN = b'"**********"'
"""How a secret looks in a dump of the configuration."""


@dataclass(slots=True)
class _Knowledge:
    """Knowledge flow as a process, at DEBUG, behind the same fault proxies."""

    port: int
    metrics_port: int
    database: Database
    file: Path
    process: ModuleProcess

    async def metrics(self) -> bytes:
        """What its /metrics says."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            return await response.read()


async def canary(deployment: Deployment, size: Size) -> list[Row]:
    """Access tokens, refresh tokens, keys and passwords appear nowhere, at DEBUG, while the faults run."""
    frames: list[str] = []
    async with issuer() as made:
        tokens = {mark: _token(made, mark) for mark in MARKS}
        planted = _token(made, "planted")
        security = {"user": {"enabled": True, "client_id": CLIENT, "realm_url": made.url}}
        async with (
            _knowledge_flow(deployment, security) as knowledge,
            stage(
                deployment,
                "canary",
                Habits(20.0),
                sessions=10,
                env=_AGENTIC_KEYS,
                token=tokens["rest"],
                on_frame=frames.append,
                security=security,
                app={"log_level": "debug"},
                ai=_agents(knowledge.port),
            ) as scene,
        ):
            careless = Careless(scene, tokens, knowledge.port, frames)
            places = await _faults(deployment, size, careless, made, planted)
            report = await scene.settle()
            places |= await _places(careless, knowledge)
    keys = {f"{name} of {owner}": value for owner, env in _owned() for name, value in env.items()}
    return [*_found(tokens | keys, planted, places, frames), loss_row("canary", "both services, under faults", report)]


async def _faults(
    deployment: Deployment, size: Size, careless: Careless, made: Issuer, planted: str
) -> dict[str, bytes]:
    """Show everything well, without the model, without issuer and Postgres, and after kill -9."""
    scene, service = careless.scene, careless.scene.service
    await scene.crowd.answered(10)
    await careless.show_everything()
    await deployment.to_postgres.tell("delay down 150 50")
    await scene.crowd.answered(20)
    await deployment.to_model.tell("refuse", "reset")
    await careless.show_everything()
    await deployment.to_model.tell("normal")
    made.status = 503
    await deployment.stop_postgres()
    await careless.show_everything()
    await careless.give_away(planted)  # now that the spool keeps what is answered
    await scene.crowd.answered(size.pick(20, 200))
    early = {"metrics before kill -9": (await service.metrics_text()).encode()}
    await service.kill()
    early["spool while Postgres is down"] = await asyncio.to_thread(_bytes_below, service.spool)
    made.status = 200
    await deployment.normal()
    await service.start()
    await careless.show_everything()
    return early


async def _places(careless: Careless, knowledge: _Knowledge) -> dict[str, bytes]:
    """Everything that can be read of both services by now."""
    service = careless.scene.service
    await _read_all(careless.scene, careless)
    dumps = [
        load(AgenticSettings, service.file, _AGENTIC_KEYS),
        load(KnowledgeFlowSettings, knowledge.file, _KNOWLEDGE_KEYS),
    ]
    return {
        "metrics": (await service.metrics_text()).encode() + await knowledge.metrics(),
        "spool": await asyncio.to_thread(_bytes_below, service.spool),
        "answers of REST": b"\n".join(careless.bodies),
        "errors of REST": b"\n".join(careless.errors),
        "database": await asyncio.to_thread(_dump, service.database.dsn),
        "database of knowledge flow": await asyncio.to_thread(_dump, knowledge.database.dsn),
        "log at DEBUG": service.log.encode(),
        "log of knowledge flow at DEBUG": knowledge.process.output.encode(),
        "configuration": "\n".join(f"{one.model_dump_json()}\n{one!r}" for one in dumps).encode(),
    }


def _found(secrets: Mapping[str, str], planted: str, places: dict[str, bytes], frames: list[str]) -> list[Row]:
    """What was found where: of the secrets nothing, of what was to be found everything."""
    places["frames"] = "\n".join(frames).encode()
    hits = [f"{name} in {place}" for name, value in secrets.items() for place in _having(value, places)]
    leaks = _having(planted, places)
    question = [place for place, data in places.items() if QUESTION.encode() in data]
    shown = sum('"type":"final"' in frame and QUESTION in frame for frame in frames)
    documents = places["database of knowledge flow"].count(DOCUMENT.splitlines()[-1].encode())
    lines = min(data.count(b" DEBUG ") for place, data in places.items() if place.endswith("at DEBUG"))
    what = "access tokens, refresh tokens, keys, passwords" + (f": {', '.join(hits[:3])}" if hits else "")
    return [
        none_of("canary", what, len(hits), of=len(secrets) * len(places), unit="places"),
        at_least(
            "canary", f"control: a token that an agent gives away is found in {', '.join(leaks)}", len(leaks), 5, ""
        ),
        at_least("canary", f"control: the question is found in {', '.join(question)}", len(question), 4, "places"),
        at_least("canary", "control: turns asked with tokens in every place and answered", shown, 4, "turns"),
        at_least("canary", "control: passages of documents uploaded beside tokens", documents, 1, "rows"),
        at_least("canary", "control: errors of REST", places["errors of REST"].count(b'"detail"'), 20, "bodies"),
        at_least("canary", "control: secrets that a dump hides", places["configuration"].count(_HIDDEN), 5, "keys"),
        at_least("canary", "control: lines at DEBUG, of each service", lines, 1, "lines"),
    ]


def _having(value: str, places: Mapping[str, bytes]) -> list[str]:
    """The places with a part of a secret, as it is or as hexadecimals: so Postgres shows bytes."""
    parts = [part.encode() for part in _own_parts(value)]
    wanted = [*parts, *(part.hex().encode() for part in parts)]
    return [place for place, data in places.items() if any(part in data for part in wanted)]


def _own_parts(value: str) -> list[str]:
    """The value, or the parts of a signed token that are its own."""
    return value.split(".")[1:] if value.count(".") == 2 else [value]


def _token(made: Issuer, mark: str) -> str:
    kind = "Refresh" if mark == "refresh" else "Bearer"
    return made.token(typ=kind, jti=f"canary-{mark}", exp=int(time.time()) + 3600)


def _owned() -> Iterable[tuple[str, Mapping[str, str]]]:
    return (("agentic", _AGENTIC_KEYS), ("knowledge flow", _KNOWLEDGE_KEYS))


def _agents(knowledge_port: int) -> dict[str, Any]:
    return {
        "knowledge_flow_url": f"http://127.0.0.1:{knowledge_port}{KF_BASE}",
        "agents": [
            {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
            {"name": "Rico", "class_path": "agentic_backend.agent.rag"},
            odd("leak"),
        ],
    }


@asynccontextmanager
async def _knowledge_flow(deployment: Deployment, security: Mapping[str, Any]) -> AsyncIterator[_Knowledge]:
    """Knowledge flow on a database of its own; its embedder and its reranker are the mock model."""
    database = await deployment.database()
    port, metrics_port = free_port(), free_port()
    model = {"base_url": f"http://127.0.0.1:{deployment.to_model.port}/v1"}
    postgres = {"host": "127.0.0.1", "port": deployment.to_postgres.port, "database": database.name, "username": USER}
    settings = {
        "app": {"port": port, "metrics_port": metrics_port, "metrics_enabled": True, "log_level": "debug"},
        "security": security,
        "embedding_model": {"provider": "openai", "name": "mock", "settings": model},
        "crossencoder_model": {"provider": "http", "name": "mock", "settings": model},
        "storage": {"postgres": postgres},
        "deadlines": {"drain_s": 5},
    }
    file = deployment.directory / f"{port}.yaml"
    file.write_text(yaml.safe_dump(settings))
    env = {"CONFIG_FILE": str(file), "ENV_FILE": "", "OPENAI_BASE_URL": "", **_KNOWLEDGE_KEYS}
    process = deployment.program("knowledge_flow_backend", env=env, traceback_allowed=True)
    await deployment.do(process.__enter__)
    try:
        await asyncio.to_thread(process.wait_for_http, f"http://127.0.0.1:{port}{KF_BASE}/ready")
        yield _Knowledge(port, metrics_port, database, file, process)
    finally:
        await asyncio.to_thread(process.kill)
        await deployment.drop(database)


async def _read_all(scene: Stage, careless: Careless) -> None:
    """What REST says of the sessions, and of a new one."""
    address = scene.service.address
    await create_session(scene.http, address)
    paths = ["/chatbot/sessions", "/agents", "/ready", "/config/frontend_settings"]
    paths += [f"/chatbot/session/{session_id}/history" for session_id in scene.crowd.sessions]
    for path in paths:
        async with scene.http.get(f"{address.url}{path}", headers=address.headers) as response:
            careless.bodies.append(await response.read())


def _bytes_below(directory: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def _dump(dsn: str) -> bytes:
    """Every row of every table, as text."""
    query = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
    with psycopg.connect(dsn) as connection:
        rows = [
            str(row[0])
            for names in connection.execute(query).fetchall()
            for row in connection.execute(sql.SQL("SELECT t::text FROM {} AS t").format(sql.Identifier(*names)))
        ]
    return "\n".join(rows).encode()
