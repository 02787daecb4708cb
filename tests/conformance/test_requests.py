"""Requests that are not framed as RFC 9112 says, bodies that never come, and answers that nobody waited for."""

import pytest

from tests.conformance.conftest import bystander
from tests.support.people import token_of
from tests.support.raw import Peer, peer
from tests.support.service import BASE
from tests.support.standing import Standing

PATH = f"{BASE}/chatbot/session"
CHUNKED = "Transfer-Encoding: chunked"


def post(*headers: str, body: bytes = b"", request: str = f"POST {PATH} HTTP/1.1", token: str | None = None) -> bytes:
    """A request; the caller is `stranger`, unless there is another token."""
    authorization = f"Authorization: Bearer {token_of('stranger') if token is None else token}"
    lines = [request, "Host: 127.0.0.1", "Content-Type: application/json", authorization, *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


SMUGGLED = b"GET /agentic/v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNK = b"2\r\n{}\r\n0\r\n\r\n"
REFUSED = {
    "a length and chunks": post("Content-Length: 2", CHUNKED, body=CHUNK),
    "chunks and a length": post(CHUNKED, "Content-Length: 2", body=CHUNK),
    "a length of nothing and chunks": post("Content-Length: 0", CHUNKED, body=CHUNK),
    "chunks in HTTP/1.0": post(CHUNKED, body=CHUNK, request=f"POST {PATH} HTTP/1.0"),
    "two lengths": post("Content-Length: 2", "Content-Length: 3", body=b"{}"),
    "two lengths in one": post("Content-Length: 2, 3", body=b"{}"),
    "a length with a sign": post("Content-Length: +2", body=b"{}"),
    "a length in hexadecimal": post("Content-Length: 0x2", body=b"{}"),
    "another coding": post("Transfer-Encoding: gzip, chunked", body=CHUNK),
    "two codings": post(CHUNKED, CHUNKED, body=CHUNK),
    "a coding before a colon with a space": post("Transfer-Encoding : chunked", body=CHUNK),
    "a folded coding": post("Transfer-Encoding:\r\n chunked", body=CHUNK),
    "a folded header": post("X-Folded: a\r\n\tb", "Content-Length: 2", body=b"{}"),
    "LF alone": post("Content-Length: 2").replace(b"\r\n", b"\n") + b"{}",
    "one LF alone": post("X-One: a\nContent-Length: 2", body=b"{}"),
    "an end of LF alone": post("Content-Length: 2")[:-2] + b"\n{}",
    "CR alone": post("X-One: a\rContent-Length: 2", body=b"{}"),
    "a chunk size that is none": post(CHUNKED, body=b"x\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than its size": post(CHUNKED, body=b"1\r\n{}\r\n0\r\n\r\n"),
}


async def all_of(stranger: Peer) -> bytes:
    """Everything up to the end of the connection."""
    received = b""
    while chunk := await stranger.reader.read(65536):
        received += chunk
    return received


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
async def test_what_two_readers_might_frame_differently_is_refused_and_ends_the_connection(
    standing: Standing, sent: bytes
) -> None:
    """docs/trust.md#D15: 400 alone; a request hidden behind it is not answered."""
    async with bystander(standing), peer(standing.port) as stranger:
        await stranger.send(sent + SMUGGLED)
        received = await all_of(stranger)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in received
    assert received.count(b"HTTP/1.1 ") == 1


async def test_bodies_that_never_come_are_ended(standing: Standing) -> None:
    """docs/trust.md#D16 at its 10 s: one byte of a body and no more; others are answered."""
    count = 40
    async with bystander(standing):
        peers = [peer(standing.port) for _ in range(count)]
        strangers = [await one.__aenter__() for one in peers]
        try:
            for number, stranger in enumerate(strangers):
                framing, body = ("Content-Length: 100", b"{") if number % 2 else (CHUNKED, b"64\r\n{")
                await stranger.send(post(framing, body=body))
            answers = [await all_of(stranger) for stranger in strangers]
        finally:
            for one in peers:
                await one.__aexit__(None, None, None)
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 408"] * count


async def test_an_answer_before_the_body_ends_the_connection(standing: Standing) -> None:
    """docs/trust.md#D16: too large by its length: the client that goes on sending reads why, and the end."""
    async with bystander(standing), peer(standing.port) as stranger:
        await stranger.send(post("Content-Length: 100000000", body=b"{"))
        answer = await stranger.reader.readuntil(b"\r\n\r\n")
        await stranger.send(bytes(1_000_000))
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert b"too_large" in await all_of(stranger)


async def test_who_is_nobody_is_refused_before_the_body_and_at_once(standing: Standing) -> None:
    """docs/trust.md#D16: an answer and the end, whose client has sent one byte of its body and waits."""
    async with bystander(standing), peer(standing.port) as stranger:
        await stranger.send(post("Content-Length: 100000", body=b"{", token="none"))
        answer = await all_of(stranger)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in answer
