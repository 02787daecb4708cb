"""Keeps tokens out of the log lines of the web server, whatever the level."""

import logging
import re
import traceback
from urllib.parse import unquote_plus

LOGGERS = ("uvicorn.error", "uvicorn.access", "uvicorn.asgi", "websockets.server")

_HIDDEN = "***"
_SECRET_KEYS = frozenset({"token", "access_token", "refresh_token"})
_QUERY_VALUE = re.compile(r"([?&;])([^=&;\s\"']+)=([^&;\s\"']*)")
_BEARER = re.compile(r"(?i)\b(bearer[.\s]+)[^\s,\"'\\]+")
_JWT = re.compile(r"eyJ[\w-]{5,}\.[\w-]*\.?[\w-]*")


def redact(text: str) -> str:
    """`text` without the values of token parameters of a query, bearer credentials and anything shaped as a JWT."""
    text = _QUERY_VALUE.sub(_hide_value, text)
    return _JWT.sub(_HIDDEN, _BEARER.sub(rf"\1{_HIDDEN}", text))


def _hide_value(match: re.Match[str]) -> str:
    # A key may be percent-encoded in the line and still be read as `token` by the application.
    if unquote_plus(match[2]).lower() in _SECRET_KEYS:
        return f"{match[1]}{match[2]}={_HIDDEN}"
    return match[0]


class RedactTokens(logging.Filter):
    """A filter for loggers that print request lines, headers or tracebacks of the web server."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record in place; never drops it."""
        message = record.getMessage()
        hidden = redact(message)
        if hidden != message:
            record.msg, record.args = hidden, ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Formatters print `exc_text` where it is set, so the traceback is cleaned once, for every handler.
            record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return True


def install_redaction() -> None:
    """Put the filter on the web server's loggers. Filters of a logger hold before any handler; safe to repeat."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(existing, RedactTokens) for existing in logger.filters):
            logger.addFilter(RedactTokens())
