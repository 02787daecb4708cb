"""Keeps tokens and clients' data out of the log lines of the web server, at any level."""

import logging
import re
import traceback
from typing import Final
from urllib.parse import unquote_plus

from backend_kit.auth.api_keys import PREFIX

LOGGERS = ("uvicorn.error", "uvicorn.access", "uvicorn.asgi", "websockets.server", "asyncio")

MAX_MESSAGE_CHARS: Final = 2 * 1024
MAX_TRACEBACK_CHARS: Final = 32 * 1024

_HIDDEN = "***"
_TRACEBACK = "Traceback (most recent call last)"
_SECRET_KEYS = frozenset({"token", "access_token", "refresh_token"})
_LONGEST_KEY = 3 * max(len(key) for key in _SECRET_KEYS)
"""With every letter percent-encoded."""
# A single character: without repetition there is no backtracking.
_SIGN: Final = re.compile(r"([\s\"'\\,;&?=.])")
_WHITE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029"
_ENDS_VALUE = frozenset(f"&;\"'{_WHITE}")
_ENDS_BEARER = frozenset(f",\"'\\{_WHITE}")
_BEFORE_BEARER = frozenset(f".{_WHITE}")
_BEGINNINGS: Final = ("eyJ", PREFIX)
"""Of a JWT, and of an API key."""
_ENDS_JWT = frozenset(f"\"'\\,;&?={_WHITE}")


def redact(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """`text` without the values of token parameters of a query, bearer credentials and anything that begins as a JWT or
    an API key.

    One pass, linear in what it reads, over the first `max_chars` characters; the rest is omitted, with a note. It runs
    on the event loop for any client's input, so no pattern here may backtrack.
    """
    beginning = "".join(_shown(_SIGN.split(text[:max_chars])))
    return beginning if len(text) <= max_chars else f"{beginning} ... ({len(text) - max_chars} more characters)"


def _shown(pieces: list[str]) -> list[str]:
    """Words (at even indexes) and the separators between them, with secrets replaced."""
    shown: list[str] = []
    ends: frozenset[str] | None = None  # while a secret is being left out: the signs that end it
    word, bearer = "", False
    for at, piece in enumerate(pieces):
        if at % 2:
            if ends is not None:
                if piece not in ends:
                    continue
                ends = None
            elif piece == "=" and _names_secret(word):
                shown.append(f"={_HIDDEN}")
                ends = _ENDS_VALUE
                continue
            elif bearer and piece not in _BEFORE_BEARER:
                bearer = False
            shown.append(piece)
        elif piece:
            if ends is not None:
                continue
            if bearer:
                shown.append(_HIDDEN)
                ends, bearer = _ENDS_BEARER, False
                continue
            bearer = piece[-6:].lower() == "bearer"
            begin = min((found for sign in _BEGINNINGS if (found := piece.find(sign)) >= 0), default=-1)
            shown.append(piece[:begin] + _HIDDEN if begin >= 0 else piece)
            ends = _ENDS_JWT if begin >= 0 else None
        word = "" if at % 2 else piece
    return shown


def _names_secret(key: str) -> bool:
    # A key may be percent-encoded in the line and still be read as `token` by the application.
    return len(key) <= _LONGEST_KEY and unquote_plus(key).lower() in _SECRET_KEYS


class RedactTokens(logging.Filter):
    """A filter for loggers that print messages or tracebacks of the web server and its libraries."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record in place; never drops it."""
        message = record.getMessage()
        # uvicorn logs the traceback of a failed lifespan as a message. A person needs its last line, the reason.
        hidden = redact(message, MAX_TRACEBACK_CHARS if message.startswith(_TRACEBACK) else MAX_MESSAGE_CHARS)
        if hidden != message:
            record.msg, record.args = hidden, ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Formatters print `exc_text` where it is set, so the traceback is cleaned once, for every handler.
            whole = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            record.exc_text = redact(whole, MAX_TRACEBACK_CHARS)
        return True


def install_redaction() -> None:
    """Put the filter on the web server's loggers, whose filters apply before any handler. Safe to repeat."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(existing, RedactTokens) for existing in logger.filters):
            logger.addFilter(RedactTokens())
