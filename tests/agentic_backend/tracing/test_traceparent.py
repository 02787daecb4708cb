"""The cases of W3C Trace Context: what is a traceparent, what is none, and what of one goes on."""

import pytest
from starlette.requests import HTTPConnection

from agentic_backend.chat.handshake import traceparent_of
from agentic_backend.tracing.traceparent import TraceParent, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "goes_on"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-03", f"00-{TRACE}-{SPAN}-03"),
        (f"00-{TRACE}-{SPAN}-fe", f"00-{TRACE}-{SPAN}-02"),
        (f"cc-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-01-what-will-be", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"00-{TRACE}-{SPAN}-01 ", None),
        (f"cc-{TRACE}-{SPAN}-01.what", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-0g", None),
        (f"00-{TRACE[:-1]}-{SPAN}-01", None),
        (f"0-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        ("", None),
        ("\u0660\u0660-" + TRACE, None),
    ],
)
def test_what_is_a_traceparent_and_what_of_it_goes_on(header: str, goes_on: str | None) -> None:
    parsed = parse(header)
    assert (None if parsed is None else str(parsed)) == goes_on


def test_one_is_read_from_its_own_text() -> None:
    for flags in range(4):
        one = TraceParent(TRACE, SPAN, flags)
        assert TraceParent.read(str(one)) == one == parse(str(one))


def test_the_sampled_flag_is_the_last_bit() -> None:
    said = [parse(f"00-{TRACE}-{SPAN}-{flags}") for flags in ("00", "01", "02", "03")]
    assert [one.sampled for one in said if one is not None] == [False, True, False, True]


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_request_with_two_of_them_has_none(times: int) -> None:
    header = f"00-{TRACE}-{SPAN}-01"
    scope = {"type": "http", "headers": [(b"traceparent", header.encode())] * times}
    assert traceparent_of(HTTPConnection(scope)) == (header if times == 1 else None)
