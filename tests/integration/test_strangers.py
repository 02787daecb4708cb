"""A stranger, before anybody knows them: what they send is in no log and costs the loop no more than its length."""

import pytest

from tests.support.agentic import start_process
from tests.support.people import SECURITY
from tests.support.service import BASE
from tests.support.strangers import CANARY, Kind, answered, loop_ms

__all__ = ["start_process"]

CHAT = f"{BASE}/chatbot/query/ws"
KINDS = [
    Kind("the chat path", CHAT),
    Kind("a foreign origin", CHAT, headers=("Origin: https://elsewhere.example",)),
    Kind("an unknown path", f"{BASE}/nowhere"),
    Kind("the chat path over HTTP", CHAT, upgrade=False),
    Kind("an unknown path over HTTP", f"{BASE}/nowhere", upgrade=False),
    Kind("a route that wants a token", f"{BASE}/chatbot/sessions", upgrade=False),
]
MARKS = "?" * 7800
TIMES_AS_LONG = 6
"""How much more a request of 8 KB may cost the loop than the shortest: it is read and passed on byte for byte."""


async def test_what_a_stranger_sends_costs_the_loop_its_length(start_process):
    async with start_process(security=SECURITY) as service:
        pid = service.process.pid
        for kind in KINDS:
            plain = await loop_ms(pid, service.port, kind.bytes())
            marked = await loop_ms(pid, service.port, kind.bytes(MARKS))
            assert marked <= TIMES_AS_LONG * plain, (kind.name, plain, marked)


@pytest.mark.parametrize("level", ["debug", "info"])
async def test_the_log_has_the_route_and_the_peer_of_a_stranger_and_nothing_that_they_sent(start_process, level):
    signs = (f"/{CANARY}1?{CANARY}2=x&token={CANARY}3", f"?%74oken={CANARY}4", f"?{CANARY}5{MARKS[:2000]}")
    headers = (
        f"X-{CANARY}6: {CANARY}7",
        f"Authorization: Bearer {CANARY}8",
        f"Sec-WebSocket-Protocol: turnwise.v1, bearer.{CANARY}9",
        f"X-Forwarded-For: {CANARY}10",
        f"Cookie: {CANARY}11",
    )
    async with start_process(security=SECURITY, app={"log_level": level}) as service:
        for kind in KINDS:
            for sign in signs:
                said = Kind(kind.name, kind.path, kind.upgrade, (*kind.headers, *headers))
                assert await answered(service.port, said.bytes(sign))
        await answered(service.port, KINDS[0].bytes())
        await service.line(rf'127\.0\.0\.1:\d+ - "WebSocket {CHAT}"')
        await service.line(r'127\.0\.0\.1:\d+ - "WebSocket unmatched" 403')
    assert CANARY not in service.process.output
    assert "??" not in service.process.output
