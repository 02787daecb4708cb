"""Where h11 ends a head, and which heads it takes that RFC 9112 has a server refuse."""

import h11
import pytest

LENIENT = {
    "lines that end with LF": b"GET / HTTP/1.1\nHost: x\n\n",
    "an end of LF alone": b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a\r\n b\r\n\r\n",
    "a length and chunks": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("head", LENIENT.values(), ids=LENIENT)
def test_a_head_is_read_more_leniently_than_the_standard_wants(head: bytes) -> None:
    """backend_kit/http/strict.py refuses what this takes: it looks at what was received as long as no head is whole,
    which `trailing_data` has, up to the end where h11 sees it."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(head[:-1])
    assert connection.next_event() is h11.NEED_DATA
    assert connection.trailing_data == (head[:-1], False)
    connection.receive_data(head[-1:] + b"rest")
    assert isinstance(connection.next_event(), h11.Request)
    assert connection.trailing_data == (b"rest", False)
