"""What a live process tells of itself, in its log and on /metrics, and what it never tells."""

import re
import signal
import time

import jwt
import pytest

from tests.backend_kit.kpi.test_summary import GAUGE, PROCESS, TIMER
from tests.support.agentic import start_process
from tests.support.odd_agent import odd
from tests.support.service import BASE, hear, hear_until, say

__all__ = ["start_process"]

COUNTER = re.compile(r"\[KPI\]\[SUMMARY\] counter (\S+) count=(\d+(?:\.\d+)?)$")
LEGACY = {
    "app_phase_latency_ms": "histogram",
    "chat_user_message_total": "counter",
    "chat_exchange_error_total": "counter",
    "agent_cache_hit_total": "counter",
    "agent_cache_miss_total": "counter",
    "rag_search_total": "counter",
    "rag_search_empty_total": "counter",
    "persist_pool_wait_ms": "gauge",
    "persist_sql_ms": "gauge",
    "event_loop_lag_ms": "gauge",
}
STANDARD = [
    "app_phase_latency_seconds",
    "app_turn_seconds",
    "app_time_to_first_token_seconds",
    "app_turn_overhead_seconds",
    "app_turn_unattributed_seconds",
    "app_ws_send_seconds",
    "app_llm_request_seconds",
    "app_event_loop_lag_seconds",
    "app_db_pool_wait_seconds",
    "app_db_statement_seconds",
    "app_persist_lag_seconds",
]
START = re.compile(
    r" turnwise\.kpi \[KPI\]\[START\] status=ready total_ms=\d+\.\d\d cpu_ms=\d+\.\d\d"
    r"( (load|build|connect)_ms=\d+\.\d\d (load|build|connect)_cpu_ms=\d+\.\d\d){3}$"
)
MEASURED = {"metrics_enabled": True, "kpi_log_summary_interval_sec": 1, "kpi_log_summary_top_n": 0}


def ask(session_id, message="Hello", **more):
    return {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": message, **more}


def counted(lines, key):
    """What a counter has come to over all summaries."""
    return sum(float(read[2]) for line in lines if (read := COUNTER.match(line)) and read[1] == key)


def sample(exposition, name):
    """The value of one sample, its labels in the name."""
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", exposition, re.MULTILINE)
    return float(value)


async def test_the_summary_and_the_metrics_of_a_live_process_have_their_published_names(start_process):
    app, compatible = MEASURED | {"log_level": "warning"}, {"legacy_ms_names": True}
    async with start_process("mock;tokens=5", app=app, metrics=compatible) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            for number in range(3):
                await say(socket, **ask(session_id, client_exchange_id=f"canary-exchange-{number}"))
                await hear_until(socket, "final")
        await service.history(session_id)
        await service.line(r"counter chat_user_message_total count=")
        exposition = await service.metrics()
        service.process.send(signal.SIGTERM)
        assert await service.ended() == 0

    lines = [line.partition(" turnwise.kpi ")[2] for line in service.process.output.splitlines() if "[SUMMARY]" in line]
    said = [line for line in service.process.output.splitlines() if "[KPI]" in line]
    assert START.search(said[0]), "what the start costs is in no summary: it has a line of its own, before them"
    assert counted(lines, "persist_turns") == counted(lines, "turns|agent=Georges") == 3
    keys = {"timer": set(), "gauge": set(), "counter": set()}
    for line in lines:
        kind = line.split()[1]
        if kind in keys:
            read = {"timer": TIMER, "gauge": GAUGE, "counter": COUNTER}[kind].match(line)
            assert read, line
            keys[kind].add(read[1])
    assert any(PROCESS.match(line.removeprefix("[KPI][SUMMARY] ")) for line in lines)
    phases = ("agent_init", "history_restore", "llm_invoke", "stream_agent_response", "stream_total", "persist_tx")
    assert {f"app.phase_latency_ms|phase={phase}" for phase in phases} <= keys["timer"]
    assert {"persist_pool_wait_ms", "persist_sql_ms", "event_loop_lag_ms"} <= keys["gauge"]
    written = [line for line in service.process.output.splitlines() if "[SUMMARY]" in line]
    assert all(" WARNING turnwise.kpi " in line for line in written)

    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE))
    assert {name: types.get(name) for name in LEGACY} == LEGACY
    assert {name: types.get(name) for name in STANDARD} == dict.fromkeys(STANDARD, "histogram")
    assert sample(exposition, "chat_user_message_total") == 3
    assert sample(exposition, 'app_turns_total{agent="Georges",status="ok"}') == 3
    for name in (session_id, "canary", "admin"):
        assert name not in exposition


async def test_a_loop_that_was_blocked_shows_in_the_summary_and_in_the_histogram(start_process):
    agents = [odd("block")]
    async with start_process(app=MEASURED, ai={"agents": agents}) as service:
        session_id = await service.create_session(agent_id="block")
        async with service.native() as socket:
            for _ in range(3):
                await say(socket, **(ask(session_id) | {"agent_id": "block"}))
                await hear_until(socket, "final")
        lag = await service.line(r"gauge event_loop_lag_ms .* max=(1[5-9]\d|[2-9]\d\d|\d{4,})\.\d\d")
        assert GAUGE.match(lag.string.partition(" turnwise.kpi ")[2].rstrip("\n"))
        exposition = await service.metrics()
        late = sample(exposition, "app_event_loop_lag_seconds_count")
        late -= sample(exposition, 'app_event_loop_lag_seconds_bucket{le="0.1"}')
        assert late >= 3
        assert sample(exposition, "app_event_loop_stalls_total") >= 3


SECRET = "a shared secret of thirty-two characters"
ISSUER = "https://idp.example/realms/one"


def signed(mark):
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": "app", "sub": "ann", "iat": now, "exp": now + 600, "jti": mark}
    return jwt.encode(claims, SECRET, algorithm="HS256")


def plain(mark):
    return f"canary-{mark}-5f1c"


SECURITY = {
    "off": {"user": {"enabled": False}},
    "on": {"user": {"enabled": True, "client_id": "app", "realm_url": ISSUER}, "hs256_secret_env": "TEST_SECRET"},
}


@pytest.mark.parametrize(("authentication", "token"), [("off", plain), ("on", signed)])
async def test_no_token_is_ever_logged(start_process, authentication, token):
    marks = ("rest", "query", "header", "subprotocol", "ask", "refresh", "context", "auth", "unknown-key", "broken")
    tokens = {mark: token(mark) for mark in marks}
    bad = "canary-bad-77aa"
    env = {"OPENAI_API_KEY": "canary-key-81", "FRED_POSTGRES_PASSWORD": "canary-password-82", "TEST_SECRET": SECRET}
    security = SECURITY[authentication]
    async with start_process(app={"log_level": "debug"}, security=security, env=env, token=tokens["rest"]) as service:
        session_id = await service.create_session()
        for headers in ({"Authorization": f"Bearer {bad}"}, {"Authorization": f"Basic {bad}"}):
            async with service.http.get(f"{BASE}/chatbot/sessions?access_token={bad}", headers=headers) as response:
                assert response.status == (200 if authentication == "off" else 401)

        secrets = {"access_token": tokens["ask"], "refresh_token": tokens["refresh"]}
        context = {"access_token": tokens["context"], "refresh_token": tokens["refresh"]}
        for path, header in ((f"?token={tokens['query']}", None), ("", tokens["header"])):
            async with service.compatible(path, token=header) as socket:
                await say(socket, **ask(session_id, runtime_context=context, **secrets))
                await hear_until(socket, "final")
        async with service.compatible(token=tokens["header"]) as socket:
            await socket.send('{"access_token":"' + tokens["broken"] + '"')
            assert (await hear(socket))["code"] == "bad_request"
        async with service.native(tokens["subprotocol"]) as socket:
            await say(socket, type="auth", access_token=tokens["auth"])
            await say(socket, type="auth", access_token=bad)
            await say(socket, **ask(session_id, access_token=tokens["unknown-key"]))
            await say(socket, **ask(session_id))
            await hear_final(socket)
        async with service.compatible(f"?token={bad}", token=None) as socket:
            if authentication == "off":
                await say(socket, **ask(session_id, access_token=bad))
                await hear_until(socket, "final")
            else:
                await socket.wait_closed()
                assert socket.close_code == 4401
        service.process.send(signal.SIGTERM)
        assert await service.ended() == 0
    output = service.process.output
    assert " DEBUG " in output
    leaked = [
        name for name, value in (tokens | env | {"bad": bad}).items() if any(own in output for own in fragments(value))
    ]
    assert leaked == []


async def hear_final(socket):
    """Frames up to the final, refusals of the frames before it included."""
    while (await hear(socket))["type"] != "final":
        pass


def fragments(token):
    """The token, or the parts of a signed one that are its own."""
    return token.split(".")[1:] if token.count(".") == 2 else [token]
