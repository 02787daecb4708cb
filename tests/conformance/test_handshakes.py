"""Handshakes that are not quite one: each has its status, none leaves anything behind, and others go on."""

from base64 import b64encode
from dataclasses import dataclass

import pytest

from tests.conformance.conftest import APP, bystander
from tests.support.people import token_of
from tests.support.raw import TEXT, frame, head, peer
from tests.support.service import BASE
from tests.support.standing import Standing

PATH = f"{BASE}/chatbot/query/ws"
OPENS = 101


@dataclass(frozen=True, slots=True)
class Handshake:
    """A head, and the status of its answer."""

    name: str
    sent: bytes
    status: int


def key(size: int) -> str:
    return b64encode(bytes(size)).decode()


HANDSHAKES = (
    Handshake("as it should be", head(PATH), OPENS),
    Handshake("names of headers in capitals", head(PATH).replace(b"Upgrade:", b"UPGRADE:"), OPENS),
    Handshake("Connection among others", head(PATH, Connection="keep-alive, upgrade"), OPENS),
    Handshake("Upgrade in capitals", head(PATH, Upgrade="WebSocket"), OPENS),
    Handshake("extensions that nobody knows", head(PATH, "Sec-WebSocket-Extensions: x-unknown; a=1"), OPENS),
    Handshake("lenient: another version is 400 and not 426", head(PATH, Sec_WebSocket_Version="12"), 400),
    Handshake("a version that is none", head(PATH, Sec_WebSocket_Version="x"), 400),
    Handshake("no version", head(PATH, without=("Sec-WebSocket-Version",)), 400),
    Handshake("two versions", head(PATH, "Sec-WebSocket-Version: 13"), 400),
    Handshake("no key", head(PATH, without=("Sec-WebSocket-Key",)), 400),
    Handshake("two keys", head(PATH, f"Sec-WebSocket-Key: {key(16)}"), 400),
    Handshake("a key of 15 bytes", head(PATH, Sec_WebSocket_Key=key(15)), 400),
    Handshake("a key of 17 bytes", head(PATH, Sec_WebSocket_Key=key(17)), 400),
    Handshake("a key that is no base64", head(PATH, Sec_WebSocket_Key="!" * 24), 400),
    Handshake("an empty key", head(PATH, Sec_WebSocket_Key=""), 400),
    Handshake("lenient: extensions that cannot be read", head(PATH, "Sec-WebSocket-Extensions: ;;="), OPENS),
    Handshake("no Upgrade: an ordinary request", head(PATH, without=("Upgrade", "Connection")), 404),
    Handshake("no Connection: an ordinary request", head(PATH, without=("Connection",)), 404),
    Handshake("another protocol to upgrade to", head(PATH, Upgrade="h2c"), 404),
    Handshake("POST", head(PATH, request="POST {} HTTP/1.1"), 405),
    Handshake("lenient: HTTP/1.0", head(PATH, request="GET {} HTTP/1.0"), OPENS),
    Handshake("lenient: HTTP/2.0 in words", head(PATH, request="GET {} HTTP/2.0"), OPENS),
    Handshake("no version of HTTP", head(PATH, request="GET {}"), 400),
    Handshake("no Host", head(PATH, without=("Host",)), 400),
    Handshake("two Hosts", head(PATH, "Host: other.example"), 400),
    Handshake("a path that is none", head("/agentic/v1/nowhere"), 403),
    Handshake("a long path", head(PATH + "?x=" + "y" * 9000), 414),
    Handshake("a long header", head(PATH, "X-Long: " + "y" * 9000), 431),
    Handshake("very many headers", head(PATH, *(f"X-{number}: y" for number in range(300))), 431),
    Handshake("a line that is no header", head(PATH, "no header at all"), 400),
    Handshake("a NUL in a header", head(PATH, "X-Bad: a\0b"), 400),
    Handshake("a request line of garbage", b"\xff\xfe garbage\r\n\r\n", 400),
    Handshake("a space before the colon", head(PATH, "X-Bad : y"), 400),
    Handshake("a length and chunks at once", head(PATH, "Content-Length: 3", "Transfer-Encoding: chunked"), 400),
    Handshake("lines that end with LF alone", head(PATH).replace(b"\r\n", b"\n"), 400),
    Handshake("one line that ends with LF alone", head(PATH).replace(b"\r\nUpgrade", b"\nUpgrade"), 400),
    Handshake("a folded line", head(PATH, "X-Folded: a\r\n b"), 400),
)


@pytest.mark.parametrize("case", HANDSHAKES, ids=[case.name for case in HANDSHAKES])
async def test_each_handshake_has_its_status(standing: Standing, case: Handshake) -> None:
    authorized = case.sent.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {token_of('stranger')}\r\n\r\n".encode())
    async with bystander(standing), peer(standing.port) as stranger:
        answer = await stranger.upgrade(authorized)
        assert int(answer.split(b" ", 2)[1]) == case.status, answer
        if case.status == OPENS:
            assert b"sec-websocket-protocol" not in answer.lower()
        else:
            stranger.writer.write_eof()
            await stranger.ended()


ORIGINS = {
    "the configured one": (APP, OPENS),
    "in other letters": ("HTTPS://APP.example.com", 403),
    "another port": (f"{APP}:8443", 403),
    "the port that goes without saying": (f"{APP}:443", 403),
    "another scheme": ("http://app.example.com", 403),
    "a suffix": (f"{APP}.evil", 403),
    "a prefix": ("https://evil-app.example.com", 403),
    "a part of the name": ("https://example.com", 403),
    "a dot at the end": (f"{APP}.", 403),
    "a path": (f"{APP}/", 403),
    "somebody's name before it": ("https://app.example.com@evil.example", 403),
    "null": ("null", 403),
    "empty": ("", 403),
    "two": (f"{APP}, https://evil.example", 403),
    "foreign": ("https://evil.example", 403),
}


@pytest.mark.parametrize("carrying", ["header", "subprotocol", "nothing"])
@pytest.mark.parametrize(("origin", "status"), ORIGINS.values(), ids=ORIGINS)
async def test_a_page_of_another_origin_never_gets_in(
    standing: Standing, origin: str, status: int, carrying: str
) -> None:
    """docs/trust.md#E5: exact match, whatever token the handshake carries."""
    token = token_of("stranger")
    credentials = {
        "header": [f"Authorization: Bearer {token}"],
        "subprotocol": [f"Sec-WebSocket-Protocol: turnwise.v1, bearer.{token}"],
        "nothing": [],
    }[carrying]
    async with peer(standing.port) as stranger:
        answer = await stranger.upgrade(head(PATH, f"Origin: {origin}", *credentials))
        assert int(answer.split(b" ", 2)[1]) == status
        if status == OPENS and carrying == "nothing":
            assert await stranger.close_code() == 4401
        if status == 403:
            assert b'"code":"forbidden"' in await stranger.reader.read(4096)


async def test_a_page_may_not_leave_its_origin_away(standing: Standing) -> None:
    """Without Origin it is no browser: such a client has a header, and none of the ways that are for pages."""
    token = token_of("stranger")
    async with peer(standing.port) as stranger:
        answer = await stranger.upgrade(head(PATH, f"Sec-WebSocket-Protocol: turnwise.v1, bearer.{token}"))
        assert answer.startswith(b"HTTP/1.1 403 ")
    async with peer(standing.port) as stranger:
        assert (await stranger.upgrade(head(PATH, f"Authorization: Bearer {token}"))).startswith(b"HTTP/1.1 101 ")


async def test_of_two_origins_neither_counts(standing: Standing) -> None:
    authorization = f"Authorization: Bearer {token_of('stranger')}"
    async with peer(standing.port) as stranger:
        both = head(PATH, f"Origin: {APP}", "Origin: https://evil.example", authorization)
        assert not (await stranger.upgrade(both)).startswith(b"HTTP/1.1 101 ")


async def test_heads_that_never_end_are_ended(standing: Standing) -> None:
    """docs/trust.md#D10 at its 10 s: silent connections, half heads, and one that trickles; others are answered."""
    half, silent = 20, 20
    async with bystander(standing):
        peers = [peer(standing.port) for _ in range(half + silent)]
        strangers = [await one.__aenter__() for one in peers]
        try:
            for stranger in strangers[:half]:
                await stranger.send(head(PATH)[:-20])
            answers = [await stranger.reader.read(4096) for stranger in strangers]
            for stranger in strangers:
                await stranger.ended()
        finally:
            for one in peers:
                await one.__aexit__(None, None, None)
    assert [answer[:12] for answer in answers[:half]] == [b"HTTP/1.1 408"] * half
    assert answers[half:] == [b""] * silent


async def test_a_request_after_a_handshake_is_no_request(standing: Standing) -> None:
    """What follows on an upgraded connection is frames, whatever it looks like: no second request is smuggled in."""
    async with bystander(standing), peer(standing.port) as stranger:
        authorization = f"Authorization: Bearer {token_of('stranger')}"
        assert (await stranger.upgrade(head(PATH, authorization))).startswith(b"HTTP/1.1 101 ")
        await stranger.send(b"GET /agentic/v1/chatbot/sessions HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await stranger.close_code() == 1002
        await stranger.ended()


async def test_a_refused_handshake_answers_no_frame(standing: Standing) -> None:
    async with bystander(standing), peer(standing.port) as stranger:
        answer = await stranger.upgrade(head(PATH, "Origin: https://evil.example") + frame(TEXT, b'{"type":"ping"}'))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"pong" not in await stranger.reader.read(65536)
