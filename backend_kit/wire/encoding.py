"""JSON as bytes, strict in what is emitted, and external text in one of Unicode's normal forms."""

import re
import unicodedata
from functools import cache
from typing import Any, Final, Literal

import orjson

InvalidJson = orjson.JSONDecodeError


def dumps(value: Any) -> bytes:
    """Encode to compact UTF-8 JSON. NaN and infinities become null; a lone surrogate is replaced by U+FFFD.

    An integer of more than 64 bits, which a model may write into the arguments of a tool, becomes a string.
    """
    try:
        encoded = orjson.dumps(value)
    except orjson.JSONEncodeError:
        encoded = orjson.dumps(_scrub(value))
    # orjson leaves what it had reserved while it wrote, several times the size.
    return b"%b" % encoded


def loads(data: bytes | str) -> Any:
    """Decode JSON. Raises `InvalidJson` (a ValueError) on anything that RFC 8259 does not allow."""
    return orjson.loads(data)


def storable(text: str) -> str:
    """The text, checked. Raises ValueError for what UTF-8 or Postgres cannot carry: a lone surrogate, NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text holds a lone surrogate") from None
    if "\0" in text:
        raise ValueError("text holds NUL")
    return text


def _scrub(value: Any) -> Any:
    """Replace what UTF-8 and 64 bits cannot represent. Only called if the first attempt to encode failed."""
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, dict):
        return {_scrub(str(key)): _scrub(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


MAX_MARKS: Final = 30
"""How many marks on one letter are kept, as in Unicode's Stream-Safe Text Format (UAX #15); no language needs ten."""
_BLOCKS: Final = (
    (0x300, 0x3100),
    (0xA660, 0xABF0),
    (0xFB1E, 0xFE30),
    (0xFF9E, 0xFFA0),
    (0x10000, 0x12000),
    (0x16A00, 0x17000),
    (0x1BC00, 0x1F000),
)
"""The marks that are sorted are in these ranges, ends excluded."""


def normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """As `unicodedata.normalize`, without the marks beyond the first `MAX_MARKS` in a row.

    That function sorts the marks of a letter in quadratic time: 16,000 in a row took it 0.26 s.
    """
    if text.isascii():
        return text
    return unicodedata.normalize(form, _long_rows().sub(r"\1", text))


@cache
def _long_rows() -> re.Pattern[str]:
    marks = [chr(code) for block in _BLOCKS for code in range(*block) if unicodedata.combining(_decomposed(chr(code)))]
    mark = f"[{''.join(marks)}]"
    return re.compile(f"({mark}{{{MAX_MARKS}}}){mark}++")


def _decomposed(sign: str) -> str:
    """The first character of a character's decomposition."""
    return unicodedata.normalize("NFKD", sign)[0]
