"""What of h11's leniency is left, with no socket."""

import h11
import pytest

from backend_kit.http.strict import StrictConnection

GOOD = b"POST /x HTTP/1.1\r\nHost: x\r\nX-Tab: a\tb\r\nContent-Length: 6\r\n\r\na\nb\r\n "


def events(data: bytes, size: int) -> list[str]:
    """The names of the events of what comes in pieces of `size` bytes."""
    connection, seen = StrictConnection(), []
    for start in range(0, len(data), size):
        connection.receive_data(data[start : start + size])
        while (event := connection.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
            seen.append(type(event).__name__)
    return seen


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_request_is_read_however_it_comes_and_its_body_may_have_any_bytes(size: int) -> None:
    seen = events(GOOD, size)
    assert (seen[0], seen[-1]) == ("Request", "EndOfMessage")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    "data",
    [
        GOOD.replace(b"\r\nX-Tab", b"\nX-Tab"),
        GOOD.replace(b"\r\n\r\n", b"\r\n\n"),
        GOOD.replace(b"\r\n\r\n", b"\n\r\n"),
        GOOD.replace(b"a\tb", b"a\rb"),
        GOOD.replace(b"a\tb", b"a\r\n b"),
        GOOD.replace(b"a\tb", b"a\r\n\tb"),
        GOOD.replace(b"X-Tab: a\tb", b"Transfer-Encoding: chunked"),
        b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_framed_as_the_standard_says_is_refused(data: bytes, size: int) -> None:
    with pytest.raises(h11.RemoteProtocolError):
        events(data, size)


def test_the_head_of_a_second_request_is_held_to_the_same() -> None:
    connection = StrictConnection()
    connection.receive_data(GOOD + b"GET / HTTP/1.1\nHost: x\r\n\r\n")
    while connection.next_event() is not h11.PAUSED:
        pass
    connection.send(h11.Response(status_code=204, headers=[]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()
