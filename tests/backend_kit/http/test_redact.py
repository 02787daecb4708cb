"""What is left out of a line of the web server's log, and what stays in it."""

import logging
import sys

import pytest

from backend_kit.http.redact import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, RedactTokens, redact

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
KEY = "tw_abcdefghijkl_ABCdef"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/ws?token=abc&x=1", "/ws?token=***&x=1"),
        ("/ws?x=1;access_token=a=b,c?d.e;y", "/ws?x=1;access_token=***;y"),
        ("?%74oken=abc", "?%74oken=***"),
        ("?%54%4F%4B%45%4e=abc", "?%54%4F%4B%45%4e=***"),
        ("?%72%65%66%72%65%73%68%5f%74%6f%6b%65%6e=abc def", "?%72%65%66%72%65%73%68%5f%74%6f%6b%65%6e=*** def"),
        ("b'token=abc\\xff'", "b'token=***'"),
        ("?token=", "?token=***"),
        ("?tokens=abc&mytoken=x", "?tokens=abc&mytoken=x"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("turnwise.v1, bearer.abc.def, other", "turnwise.v1, bearer.***, other"),
        ("(b'authorization', b'bEaReR  \t abc=')", "(b'authorization', b'bEaReR  \t ***')"),
        ("bearer=abc", "bearer=abc"),
        (f"{JWT} and x{JWT}/y, z", "*** and x***, z"),
        (f'"{JWT}"', '"***"'),
        (f"{KEY} and {KEY}, or x{KEY}", "*** and ***, or x***"),
        (f"(b'x-api-key', b'{KEY}')", "(b'x-api-key', b'***')"),
        ("?a=b&c=d. A sentence, and another; 'done'.", "?a=b&c=d. A sentence, and another; 'done'."),
        ("", ""),
    ],
)
def test_secrets_are_left_out_and_nothing_else(said: str, shown: str) -> None:
    assert redact(said) == shown


def test_a_secret_that_the_bound_cuts_is_left_out_whole() -> None:
    for before in range(MAX_MESSAGE_CHARS - 20, MAX_MESSAGE_CHARS):
        assert "CAN" not in redact(f"{' ' * before}?token=CANARYCANARYCANARY")


def test_what_is_beyond_the_bound_is_counted_and_not_shown() -> None:
    assert redact("x" * MAX_MESSAGE_CHARS) == "x" * MAX_MESSAGE_CHARS
    assert redact("x" * (MAX_MESSAGE_CHARS + 7)) == "x" * MAX_MESSAGE_CHARS + " ... (7 more characters)"


def test_a_traceback_is_cleaned_and_bounded_and_says_where_it_was() -> None:
    known: dict[str, str] = {}
    try:
        known["?token=CANARY " + "y" * 100_000]
    except KeyError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    assert RedactTokens().filter(record)
    assert record.exc_text is not None
    assert "test_redact.py" in record.exc_text
    assert "?token=***" in record.exc_text
    assert len(record.exc_text) < MAX_TRACEBACK_CHARS + 100
    assert "CANARY" not in record.exc_text


def test_a_traceback_that_is_a_message_keeps_its_last_line() -> None:
    said = (
        "Traceback (most recent call last):\n" + "  at a line\n" * 500 + "MetricsPortTaken: cannot listen, ?token=abc"
    )
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, said, (), None)
    assert RedactTokens().filter(record)
    assert record.getMessage().endswith("MetricsPortTaken: cannot listen, ?token=***")
