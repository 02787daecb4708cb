"""docs/trust.md#D1: raw frames of every kind against the service as it is run, while another client is being
answered."""

import zlib
from itertools import pairwise

import pytest

from tests.conformance.cases import ANSWER, ASK, MAX_FRAME_BYTES, STAYS, Case, cases
from tests.conformance.conftest import bystander
from tests.support.people import token_of
from tests.support.raw import CLOSE, PING, TEXT, Peer, frame, head, peer
from tests.support.service import BASE
from tests.support.standing import Standing

PATH = f"{BASE}/chatbot/query/ws"
CASES = cases()


def native_head(*more: str) -> bytes:
    return head(PATH, f"Authorization: Bearer {token_of('stranger')}", "Sec-WebSocket-Protocol: turnwise.v1", *more)


async def opened(stranger: Peer, *more: str) -> bytes:
    answer = await stranger.upgrade(native_head(*more))
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    return answer


async def holds(case: Case, stranger: Peer) -> None:
    """The server answers as the case says."""
    await stranger.send(case.sent)
    for expected in case.heard:
        assert await stranger.hear() == expected
    if case.code == STAYS:
        await stranger.send(frame(TEXT, ASK))
        assert await stranger.hear() == ANSWER
    else:
        assert await stranger.close_code() == case.code
        await stranger.send(frame(CLOSE))
        await stranger.ended()


def test_the_table_is_large_and_each_case_has_a_name_of_its_own() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_each_frame_is_answered_as_the_standard_says(standing: Standing, case: Case) -> None:
    async with bystander(standing), peer(standing.port) as stranger:
        await opened(stranger)
        await holds(case, stranger)


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
async def test_it_does_not_matter_where_the_network_cuts(standing: Standing, cut: int) -> None:
    data = frame(TEXT, ASK, fin=False)[:-1] + ASK[-1:] + frame(PING, b"between") + frame(0, b" ")
    async with bystander(standing), peer(standing.port) as stranger:
        await opened(stranger)
        for start in range(0, len(data), cut):
            await stranger.send(data[start : start + cut])
        assert await stranger.hear() == (10, b"between")
        assert await stranger.hear() == ANSWER


async def test_what_comes_before_the_answer_to_the_handshake_is_not_read(standing: Standing) -> None:
    """A client has to wait for it (RFC 6455 §4.1); what it sends too early is dropped, and the socket is as good."""
    async with bystander(standing), peer(standing.port) as stranger:
        answer = await stranger.upgrade(native_head() + frame(TEXT, b"{") + frame(PING, b"early"))
        assert answer.startswith(b"HTTP/1.1 101 ")
        await holds(Case("", frame(PING, b"late"), STAYS, ((10, b"late"),)), stranger)


# With compression


def deflated(text: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-12)
    return (deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH))[:-4]


BOMB = deflated(b" " * 10_000_000)
COMPRESSED = (
    Case("a compressed text", frame(TEXT, deflated(ASK), reserved=0x40), STAYS, (ANSWER,)),
    Case("a text that is not compressed", frame(TEXT, ASK), STAYS, (ANSWER,)),
    Case(
        "a compressed text in fragments with a ping between",
        frame(TEXT, deflated(ASK)[:4], fin=False, reserved=0x40) + frame(PING, b"x") + frame(0, deflated(ASK)[4:]),
        STAYS,
        ((10, b"x"), ANSWER),
    ),
    Case("the mark of compression on a continuation", frame(TEXT, b"", fin=False) + frame(0, b"", reserved=0x40), 1002),
    Case("the mark of compression on a ping", frame(PING, b"", reserved=0x40), 1002),
    Case("what does not inflate", frame(TEXT, b"\xff\xff\xff\xff", reserved=0x40), 1002),
    Case("bad UTF-8 under compression", frame(TEXT, deflated(b"\xff\xfe"), reserved=0x40), 1007),
    Case(
        "what inflates to the largest size",
        frame(TEXT, deflated(ASK.ljust(MAX_FRAME_BYTES)), reserved=0x40),
        STAYS,
        (ANSWER,),
    ),
    Case("what inflates to a byte more", frame(TEXT, deflated(ASK.ljust(MAX_FRAME_BYTES + 1)), reserved=0x40), 1009),
    Case("a bomb of 10 MB", frame(TEXT, BOMB[:MAX_FRAME_BYTES], reserved=0x40), 1009),
    Case(
        "a bomb over fragments",
        b"".join(
            frame(TEXT if start == 0 else 0, BOMB[start : start + 1000], fin=False, reserved=0x40 if start == 0 else 0)
            for start in range(0, len(BOMB), 1000)
        ),
        1009,
    ),
)


@pytest.mark.parametrize("case", COMPRESSED, ids=[case.name for case in COMPRESSED])
async def test_compressed_frames_are_held_to_the_same(deflating: Standing, case: Case) -> None:
    async with bystander(deflating), peer(deflating.port) as stranger:
        answer = await opened(stranger, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=12")
        assert b"permessage-deflate" in answer
        await holds(case, stranger)


async def test_compression_that_was_not_agreed_on_is_a_reserved_bit(deflating: Standing) -> None:
    async with bystander(deflating), peer(deflating.port) as stranger:
        assert b"permessage-deflate" not in await opened(stranger)
        await holds(Case("", frame(TEXT, deflated(ASK), reserved=0x40), 1002), stranger)


OVERSIZE = (frame(TEXT, b"x" * 10_000_000), *(case.sent for case in CASES if case.code == 1009))
LARGEST_GROWTH_MB = 1.0
ROUNDS = 4


async def test_what_is_too_large_takes_no_memory(standing: Standing, deflating: Standing) -> None:
    """docs/trust.md#D4: 10 MB at once, 2**63 announced, and bombs; what a frame leaves behind it leaves in every round.

    The least growth counts: in one round of many the service takes 2 MB at once, without such frames as well.
    """
    for server, frames, extension in (
        (standing, OVERSIZE, ()),
        (deflating, (COMPRESSED[-2].sent, COMPRESSED[-1].sent), ("Sec-WebSocket-Extensions: permessage-deflate",)),
    ):
        seen = []
        for _ in range(ROUNDS):
            for sent in frames:
                async with bystander(server), peer(server.port) as stranger:
                    await opened(stranger, *extension)
                    await stranger.send(sent)
                    assert await stranger.close_code() == 1009
            seen.append(server.rss_mb())
        assert min(after - before for before, after in pairwise(seen)) <= LARGEST_GROWTH_MB
