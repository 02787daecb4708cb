"""Tokens and keys that can be recognised, shown to the service everywhere while faults run, and looked for after."""

import asyncio
import itertools
import time
from pathlib import Path

import aiohttp
import jwt
import psycopg
from psycopg import sql
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from backend_kit.wire import dumps
from tests.chaos.kills import loss_row
from tests.chaos.ledger import Asked
from tests.chaos.load import BASE, CUT, Habits, ask_text, create_session, hear
from tests.chaos.rows import Row, at_least, none_of
from tests.chaos.world import Size, Stage, World, stage

_SECRET = "canary-secret-of-the-issuer-81c2-and-more"
_ISSUER = "https://idp.example/realms/one"
_KEY = "canary-api-key-5d0e"
_PASSWORD = "canary-password-77ab"
_MARKS = ("rest", "query", "header", "subprotocol", "ask", "refresh", "context", "auth", "unknown-key", "broken")
_SECURITY = {"user": {"enabled": True, "client_id": "app", "realm_url": _ISSUER}, "hs256_secret_env": "CANARY_SECRET"}
_QUESTION = "Where is the bird that sings?"


def _token(mark: str) -> str:
    now = int(time.time())
    claims = {"iss": _ISSUER, "aud": "app", "sub": "ann", "iat": now, "exp": now + 3600, "jti": f"canary-{mark}"}
    return jwt.encode(claims, _SECRET, algorithm="HS256")


async def canary(world: World, size: Size) -> list[Row]:
    """Access tokens, refresh tokens and API keys appear nowhere, at DEBUG, while the faults run."""
    tokens = {mark: _token(mark) for mark in _MARKS}
    env = {"CANARY_SECRET": _SECRET, "OPENAI_API_KEY": _KEY, "FRED_POSTGRES_PASSWORD": _PASSWORD}
    frames: list[str] = []
    places: dict[str, bytes] = {}
    async with stage(
        world,
        "canary",
        Habits(20.0),
        sessions=10,
        env=env,
        token=tokens["rest"],
        on_frame=frames.append,
        security=_SECURITY,
        app={"log_level": "debug"},
    ) as scene:
        service = scene.service
        await scene.crowd.answered(10)
        frames += await _show(scene, tokens)
        await world.to_postgres.tell("delay down 150 50")
        await scene.crowd.answered(20)
        await world.to_model.tell("refuse", "reset")
        frames += await _show(scene, tokens)
        await world.to_model.tell("normal")
        await world.stop_postgres()
        frames += await _show(scene, tokens)
        await scene.crowd.answered(size.pick(20, 200))
        places["metrics"] = (await service.metrics_text()).encode()
        await service.kill()
        places["spool while Postgres is down"] = await asyncio.to_thread(_bytes_below, service.spool)
        await world.normal()
        await service.start()
        frames += await _show(scene, tokens)
        report = await scene.settle()
        places["metrics"] += (await service.metrics_text()).encode()
        places["spool"] = await asyncio.to_thread(_bytes_below, service.spool)
        places["answers of REST"] = await _answers(scene)
        places["database"] = await asyncio.to_thread(_dump, service.database.dsn)
        places["log at DEBUG"] = service.log.encode()
    places["frames"] = "\n".join(frames).encode()
    secrets = {name: _own_parts(value) for name, value in {**tokens, **env}.items()}
    hits = [
        f"{name} in {place}"
        for (name, parts), (place, data) in itertools.product(secrets.items(), places.items())
        if any(part.encode() in data for part in parts)
    ]
    shown = sum('"type":"final"' in frame and _QUESTION in frame for frame in frames)
    control = [place for place, data in places.items() if _QUESTION.encode() in data]
    what = "access tokens, refresh tokens, keys, passwords" + (f": {', '.join(hits[:3])}" if hits else "")
    return [
        none_of("canary", what, len(hits), of=len(secrets) * len(places), unit="places"),
        at_least("canary", f"control: the question is found in {', '.join(control)}", len(control), 4, "places"),
        at_least("canary", "control: turns asked with tokens in every place and answered", shown, 4, "turns"),
        at_least("canary", "control: lines at DEBUG", places["log at DEBUG"].count(b" DEBUG "), 1, "lines"),
        loss_row("canary", "with authentication, under faults", report),
    ]


async def _show(scene: Stage, tokens: dict[str, str]) -> list[str]:
    """Use every token where it belongs, and where it does not; the frames that came back."""
    frames: list[str] = []
    session_id = scene.crowd.sessions[0]
    port = scene.service.address.port
    url = f"ws://127.0.0.1:{port}{BASE}/chatbot/query/ws"
    shown = {"access_token": tokens["ask"], "refresh_token": tokens["refresh"]}
    context = {"access_token": tokens["context"], "refresh_token": tokens["refresh"]}

    def asked(mark: str) -> Asked:
        return scene.ledger.ask(f"{mark}-{time.monotonic_ns()}", session_id, _QUESTION)

    native = connect(
        url,
        subprotocols=[Subprotocol("turnwise.v1"), Subprotocol(f"bearer.{tokens['subprotocol']}")],
        origin=f"http://127.0.0.1:{port}",  # type: ignore[arg-type]
    )
    texts = (
        dumps({"type": "auth", "access_token": tokens["auth"]}).decode(),
        ask_text(asked("unknown-key"), access_token=tokens["unknown-key"]),
        ask_text(asked("native"), if_busy="queue"),
    )
    await _say(native, texts, frames)
    for dial in (
        connect(f"{url}?token={tokens['query']}"),
        connect(url, additional_headers={"Authorization": f"Bearer {tokens['header']}"}),
    ):
        await _say(dial, (ask_text(asked("compatible"), runtime_context=context, **shown),), frames)
    broken = connect(url, additional_headers={"Authorization": f"Bearer {tokens['header']}"})
    await _say(broken, ('{"access_token":"' + tokens["broken"] + '"',), frames)
    return frames


async def _say(dial: connect, texts: tuple[str, ...], frames: list[str]) -> None:
    """Send frames and take what comes until the last of them has ended, within 3 s: faults run."""
    try:
        async with dial as socket:
            for text in texts:
                await socket.send(text)
            async with asyncio.timeout(3):
                await _ends(socket, frames)
    except CUT:
        return


async def _ends(socket: ClientConnection, frames: list[str]) -> None:
    while (frame := await hear(socket, frames.append))["type"] not in ("final", "cancelled"):
        if frame["type"] == "error" and frame.get("code") != "bad_request":
            return


async def _answers(scene: Stage) -> bytes:
    """What REST says of the sessions, of a new one, and to a bad token."""
    address = scene.service.address
    await create_session(scene.http, address)
    paths = ["/chatbot/sessions", "/agents", "/ready", "/config/frontend_settings"]
    paths += [f"/chatbot/session/{session_id}/history" for session_id in scene.crowd.sessions]
    bodies = [await _body(scene.http, f"{address.url}{path}", address.headers) for path in paths]
    bad = {"Authorization": f"Bearer {address.token}x"}
    bodies.append(await _body(scene.http, f"{address.url}/chatbot/sessions", bad))
    return b"\n".join(bodies)


async def _body(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> bytes:
    async with http.get(url, headers=headers) as response:
        return await response.read()


def _own_parts(value: str) -> list[str]:
    """The value, or the parts of a signed token that are its own."""
    return value.split(".")[1:] if value.count(".") == 2 else [value]


def _bytes_below(directory: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def _dump(dsn: str) -> bytes:
    """Every row of every table, as text."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = [
            str(row[0])
            for (name,) in tables
            for row in connection.execute(sql.SQL("SELECT t::text FROM {} AS t").format(sql.Identifier(name)))
        ]
    return "\n".join(rows).encode()
