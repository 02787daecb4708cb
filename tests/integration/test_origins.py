"""A page of another origin that is authorized: it opens the socket, and reads what REST and event streams say."""

from tests.support.following import ask_frame, stream_events
from tests.support.people import SECURITY, headers_of
from tests.support.service import BASE, StartService

PAGE = "https://portal.example.org"
GUARDED = SECURITY | {"authorized_origins": [PAGE]}


async def test_an_authorized_page_makes_a_session_asks_and_reads_its_history(start_service: StartService) -> None:
    async with start_service(security=GUARDED) as service:
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        async with service.http.options(f"{BASE}/chatbot/session", headers={"Origin": PAGE, **wanted}) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, PAGE)
        ann = headers_of("ann") | {"Origin": PAGE}
        async with service.http.post(f"{BASE}/chatbot/session", json={"agent_id": "Georges"}, headers=ann) as response:
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            session_id = (await response.json())["id"]
        ask = ask_frame(session_id, "e1")
        async with service.http.post(f"{BASE}/chatbot/query/stream", json=ask, headers=ann) as response:
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            assert [event["event"] async for event in stream_events(response) if "event" in event][-1] == "final"
        async with service.http.get(f"{BASE}/chatbot/session/{session_id}/history", headers=ann) as response:
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
            assert len(await response.json()) == 2


async def test_another_page_reads_nothing(start_service: StartService) -> None:
    async with start_service(security=GUARDED) as service:
        evil = headers_of("ann") | {"Origin": "https://evil.example"}
        async with service.http.get(f"{BASE}/chatbot/sessions", headers=evil) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
