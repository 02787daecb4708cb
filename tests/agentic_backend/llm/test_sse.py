import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_backend.llm.sse import SseParser, SseTooLarge


def parse(*pieces: bytes, max_bytes: int = 1000) -> list[bytes]:
    parser = SseParser(max_bytes)
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\ndata: b\n\n", [b"\nb"]),
        (b": keep-alive\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"event: x\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"lorem ipsum\n\n", []),
        (b"data: cut\n", []),
        (b"data: cut", []),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_reads_what_the_standard_allows(stream: bytes, events: list[bytes]) -> None:
    assert parse(stream) == events


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_cut_at_any_byte_gives_the_same_events(line_end: bytes) -> None:
    lines = [b"data: h\xc3\xa9llo \xf0\x9f\x98\x80", b"data: x", b"", b": c", b"data:y", b"", b"data: [DONE]", b"", b""]
    stream = line_end.join(lines)
    whole = parse(stream)
    assert whole == ["héllo 😀\nx".encode(), b"y", b"[DONE]"]
    for cut in range(len(stream) + 1):
        assert parse(stream[:cut], stream[cut:]) == whole
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == whole


@given(st.lists(st.sampled_from([b"data: a", b"data:", b":", b"\n", b"\r", b"\r\n", b"x", b"\xe2"])), st.data())
def test_cuts_never_matter(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*pieces) == parse(stream)


def test_a_line_without_an_end_is_refused_at_the_bound() -> None:
    parser = SseParser(1000)
    for _ in range(10):
        assert parser.feed(b"x" * 100) == []
    with pytest.raises(SseTooLarge):
        parser.feed(b"x")


def test_an_event_of_many_lines_is_refused_at_the_bound() -> None:
    parser = SseParser(1000)
    for _ in range(100):
        assert parser.feed(b"data: 123456789\n") == []
    with pytest.raises(SseTooLarge):
        parser.feed(b"data: 123456789\n")


def test_a_line_that_comes_whole_is_refused_at_the_bound() -> None:
    with pytest.raises(SseTooLarge):
        parse(b"data: " + b"x" * 1001 + b"\n\n")
    assert parse(b"data: " + b"x" * 1000 + b"\n\n") == [b"x" * 1000]


def test_the_bound_counts_each_event_anew() -> None:
    assert len(parse(*[b"data: " + b"x" * 600 + b"\n\n"] * 10)) == 10
