"""What a peer may send after its handshake, and what RFC 6455 has the server answer: a table, partly generated.

Where the server is not as strict as the RFC would like, the case says so in its name and expects what is done, so that
an upgrade that changes it is seen: `lenient: …` takes what should be refused, `abrupt: …` drops a message that came in
the same segment as a violation behind it.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.raw import BINARY, CLOSE, NO_CODE, PING, PONG, TEXT, close_frame, frame

MAX_FRAME_BYTES = 16_384
"""`limits.max_frame_bytes` of the service that the cases are for."""
STAYS = 0
ASK = b'{"type":"ping"}'
ANSWER = (TEXT, b'{"type":"pong"}')
_CONT = 0


@dataclass(frozen=True, slots=True)
class Case:
    """Bytes after the handshake; the frames that the server answers in this order; then the code of its close frame, or
    `STAYS`: the socket goes on.
    """

    name: str
    sent: bytes
    code: int
    heard: tuple[tuple[int, bytes], ...] = ()


def cases() -> list[Case]:
    """The whole table."""
    groups = (_fragments, _utf8, _reserved, _control, _closing, _sizes, _texts)
    return [case for group in groups for case in group()]


def pieces(payload: bytes, size: int) -> bytes:
    """A text in fragments of so many bytes."""
    parts = [payload[start : start + size] for start in range(0, len(payload), size)]
    last = len(parts) - 1
    return b"".join(
        frame(TEXT if number == 0 else _CONT, part, fin=number == last) for number, part in enumerate(parts)
    )


def _fragments() -> Iterator[Case]:
    for size in (1, 2, 7):
        yield Case(f"a text in fragments of {size}", pieces(ASK, size), STAYS, (ANSWER,))
    begun = frame(TEXT, ASK[:5], fin=False)
    ended = frame(_CONT, ASK[5:])
    empty = frame(_CONT, b"", fin=False)
    yield Case("a ping between fragments", begun + frame(PING, b"hello") + ended, STAYS, ((PONG, b"hello"), ANSWER))
    yield Case("a pong between fragments", begun + frame(PONG, b"hello") + ended, STAYS, (ANSWER,))
    pinged = b"".join(frame(PING, bytes([65 + n])) + empty for n in range(3))
    pongs = tuple((PONG, bytes([65 + n])) for n in range(3))
    yield Case("pings and empty fragments between fragments", begun + pinged + ended, STAYS, (*pongs, ANSWER))
    yield Case("an empty first fragment", frame(TEXT, b"", fin=False) + frame(_CONT, ASK), STAYS, (ANSWER,))
    yield Case("an empty last fragment", frame(TEXT, ASK, fin=False) + frame(_CONT, b""), STAYS, (ANSWER,))
    yield Case("empty fragments between fragments", begun + empty * 50 + ended, STAYS, (ANSWER,))
    for code in (1000, 1001, 3000):
        yield Case(f"a close {code} between fragments", begun + close_frame(code, b"why"), code)
    yield Case("a close without a code between fragments", begun + frame(CLOSE), 1000)
    yield Case("a close that nobody may send between fragments", begun + close_frame(1005), 1002)
    yield Case("a text within a text", begun + frame(TEXT, ASK), 1002)
    yield Case("a binary frame within a text", begun + frame(BINARY, b"x"), 1002)
    yield Case("a continuation of nothing", frame(_CONT, ASK), 1002)
    yield Case("an unfinished continuation of nothing", frame(_CONT, ASK, fin=False), 1002)
    yield Case("abrupt: a continuation after a whole text", frame(TEXT, ASK) + frame(_CONT, b"x"), 1002)
    yield Case("a binary frame in fragments", frame(BINARY, b"x", fin=False) + frame(_CONT, b"y"), 1003)


def _utf8() -> Iterator[Case]:
    bad = {
        "a lone continuation byte": b"\x80",
        "a byte that never occurs": b"\xff",
        "a character cut at the end": "é".encode()[:1],
        "a long character cut at the end": "\U0001f600".encode()[:3],
        "an overlong slash": b"\xc0\xaf",
        "an overlong NUL": b"\xe0\x80\x80",
        "a surrogate": b"\xed\xa0\x80",
        "beyond the last code point": b"\xf4\x90\x80\x80",
        "five bytes": b"\xf8\x88\x80\x80\x80",
    }
    for name, payload in bad.items():
        yield Case(f"text with {name}", frame(TEXT, b"ok " + payload), 1007)
    yield Case("bad UTF-8 in the second fragment", frame(TEXT, b"ok", fin=False) + frame(_CONT, b"\xc3\x28"), 1007)
    yield Case("bad UTF-8 in the first fragment", frame(TEXT, b"\xc3\x28", fin=False) + frame(_CONT, b"ok"), 1007)
    started = frame(TEXT, b"ok", fin=False)
    yield Case("bad UTF-8 in a first fragment without another", frame(TEXT, b"\xc3\x28", fin=False), 1007)
    yield Case("bad UTF-8 in a second fragment without another", started + frame(_CONT, b"\xff", fin=False), 1007)
    cut = frame(TEXT, b"ok \xc3", fin=False)
    yield Case("a character whose second fragment does not complete it", cut + frame(_CONT, b"\x28", fin=False), 1007)
    yield Case("a character cut at the end of the last fragment", started + frame(_CONT, b"\xc3"), 1007)
    text = '{"type":"ping"} \u00a0'.strip("\u00a0").encode() + b" "
    yield Case("whitespace around JSON", frame(TEXT, text), STAYS, (ANSWER,))
    yield Case("a bad reason of a close", close_frame(1000, b"\xff"), 1007)


def _reserved() -> Iterator[Case]:
    for bit in (0x40, 0x20, 0x10, 0x70):
        for opcode, name in ((TEXT, "text"), (BINARY, "binary"), (PING, "ping"), (CLOSE, "close")):
            yield Case(f"reserved bits {bit:#x} of a {name} frame", frame(opcode, b"", reserved=bit), 1002)
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
        yield Case(f"reserved opcode {opcode}", frame(opcode, b"x"), 1002)
    yield Case("abrupt: a reserved opcode after a text", frame(TEXT, ASK) + frame(3, b"x"), 1002)


def _control() -> Iterator[Case]:
    full = bytes(range(125))
    yield Case("an empty ping", frame(PING), STAYS, ((PONG, b""),))
    yield Case("a ping of 125 bytes", frame(PING, full), STAYS, ((PONG, full),))
    yield Case("a ping of 126 bytes", frame(PING, bytes(126)), 1002)
    yield Case("a pong of 126 bytes", frame(PONG, bytes(126)), 1002)
    yield Case("a ping in fragments", frame(PING, b"a", fin=False) + frame(_CONT, b"b"), 1002)
    yield Case("a close in fragments", frame(CLOSE, b"", fin=False), 1002)
    yield Case("a pong that nobody asked for", frame(PONG, b"unasked"), STAYS)
    yield Case("lenient: a ping whose size stands in 2 bytes", frame(PING, b"x", width=2), STAYS, ((PONG, b"x"),))
    yield Case("a hundred pings at once", frame(PING, b"x") * 100, STAYS, ((PONG, b"x"),) * 100)
    for opcode, name in ((TEXT, "text"), (PING, "ping"), (CLOSE, "close")):
        yield Case(f"a {name} frame without a mask", frame(opcode, b"", mask=None), 1002)
    yield Case("a text under a mask", frame(TEXT, ASK, mask=b"\x01\x80\xfe\x7f"), STAYS, (ANSWER,))


def _closing() -> Iterator[Case]:
    for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999):
        yield Case(f"close {code}", close_frame(code, b"why"), code)
    for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535):
        yield Case(f"close {code}, which nobody may send", close_frame(code), 1002)
    yield Case("close without a code", frame(CLOSE), NO_CODE)
    yield Case("close of one byte", frame(CLOSE, b"\x03"), 1002)
    yield Case("close with a reason of 123 bytes", close_frame(1000, b"r" * 123), 1000)
    yield Case("close with a reason of 124 bytes", close_frame(1000, b"r" * 124), 1002)
    yield Case("frames behind a close", close_frame(1000) + frame(TEXT, ASK) + frame(PING, b"x"), 1000)
    yield Case("garbage behind a close", close_frame(1000) + b"\xff" * 100, 1000)
    yield Case("two closes", close_frame(1000) + close_frame(1001), 1000)
    yield Case("a text, then a close at once", frame(TEXT, b"{}") + close_frame(1000), 1000)


def _sizes() -> Iterator[Case]:
    largest = ASK + b" " * (MAX_FRAME_BYTES - len(ASK))
    yield Case("a text of the largest size", frame(TEXT, largest), STAYS, (ANSWER,))
    yield Case("a text one byte too large", frame(TEXT, largest + b" "), 1009)
    yield Case("fragments of the largest size together", pieces(largest, 4000), STAYS, (ANSWER,))
    yield Case("fragments one byte too large together", pieces(largest + b" ", 4000), 1009)
    for size in (MAX_FRAME_BYTES + 1, 2**31, 2**32, 2**40, 2**63 - 1):
        yield Case(f"{size} bytes announced, one sent", frame(TEXT, b"x", length=size, width=8), 1009)
    for size in (2**63, 2**64 - 1):
        yield Case(f"{size} bytes announced: the highest bit must be 0", frame(TEXT, b"x", length=size, width=8), 1009)
    yield Case("a large continuation announced", frame(TEXT, b"x", fin=False) + frame(_CONT, b"", length=2**40), 1009)
    yield Case("lenient: a small size in 2 bytes", frame(TEXT, ASK, width=2), STAYS, (ANSWER,))
    yield Case("lenient: a small size in 8 bytes", frame(TEXT, ASK, width=8), STAYS, (ANSWER,))
    yield Case("a ping of 2**40 bytes announced", frame(PING, b"x", length=2**40, width=8), 1009)


def _texts() -> Iterator[Case]:
    yield Case("two texts at once", frame(TEXT, ASK) * 2, STAYS, (ANSWER, ANSWER))
    yield Case("twenty texts at once", frame(TEXT, ASK) * 20, STAYS, (ANSWER,) * 20)
    yield Case("a binary frame", frame(BINARY, ASK), 1003)
    yield Case("an empty binary frame", frame(BINARY), 1003)
    yield Case("garbage", struct.pack("!I", 0xDEADBEEF) * 8, 1002)
    yield Case("another handshake", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1002)
    yield Case("a TLS greeting", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 1002)
