"""Bytes to text that Postgres, JSON and a browser can hold: the character set, line ends, control characters."""

import codecs
import re
from collections.abc import Iterator
from itertools import islice

from charset_normalizer import from_bytes

from backend_kit.wire import normalized
from knowledge_flow_backend.library.reasons import Reason, Refused

# Longest first: the mark of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE_BYTES = 64 * 1024
_MAX_DAMAGE = 0.001
"""Share of broken characters up to which a file of a known charset is taken as damaged, not as another charset."""
# Also what stands unseen within words and would hide them from a search: soft hyphens, zero-width spaces, marks.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\u00ad\u200b\ufeff\ud800-\udfff]")
_LINE_ENDS = re.compile("\r\n|[\r\x85\u2028\u2029\x0c]")

_WESTERN = re.compile(
    "[\u00a0\u00a7\u00ab\u00b0\u00bb\u00c0-\u00cf\u00d1-\u00d6\u00d8-\u00dd\u00df-\u00ef\u00f1-\u00f6\u00f8-\u00fd\u00ff"
    "\u0152\u0153\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2020\u2022\u2026\u20ac\u2122]"
)
_WESTERN_SHARE = 0.2
"""Languages that are written in Windows-1252 have fewer letters beyond ASCII than this; Russian has nearly all."""

# What pages say when they mean Windows' superset (the WHATWG table of labels).
_WINDOWS = {"iso-8859-1": "cp1252", "latin-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "ascii": "cp1252"}


def decode(data: bytes, declared: str | None = None) -> str:
    """The text of a file, cleaned (see `clean`).

    In this order: a byte order mark, strict UTF-8, the charset `declared` within the file, UTF-16 by the pattern of
    its zero bytes, UTF-8 with single damaged bytes, the likeliest legacy charset of a sample. Raises `Refused` with
    `not_text` for what holds binary data and `unknown_charset` where nothing fits.
    """
    for mark, charset in _MARKS:
        if data.startswith(mark):
            return _tolerant(data[len(mark) :], charset)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _not_utf8(data, declared)
    if "\x00" in text:  # UTF-16 of plain English is valid UTF-8
        return _wide(data)
    return clean(text)


def clean(text: str) -> str:
    """One line end (\\n), nothing unseen within words, no lone surrogates, composed letters (NFC)."""
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", normalized("NFC", text)))


def lines_of(content: str) -> Iterator[str]:
    """Lines with their ends; not all at once, as they would take the memory of the file once more."""
    start = 0
    while start < len(content):
        end = content.find("\n", start) + 1 or len(content)
        yield content[start:end]
        start = end


def _not_utf8(data: bytes, declared: str | None) -> str:
    if b"\x00" in data:
        return _wide(data)
    if declared:
        try:
            return _tolerant(data, _WINDOWS.get(declared.lower(), declared))
        except (LookupError, Refused):
            pass  # the declaration names no charset, or not this one
    repaired = data.decode(errors="replace")
    broken = repaired.count("\ufffd")
    beyond_ascii = sum(1 for char in repaired if char > "\x7f")
    if broken <= max(1, len(repaired) * _MAX_DAMAGE) and beyond_ascii > 4 * broken:
        return clean(repaired)
    return _legacy(data)


def _wide(data: bytes) -> str:
    """UTF-16 without its mark: in Western text every second byte is zero, on one side or the other."""
    sample = data[:_SAMPLE_BYTES]
    zeros = (sample[::2].count(0), sample[1::2].count(0))
    half = max(1, len(sample) // 2)
    if min(zeros) > half * 0.05 or max(zeros) < half * 0.2:
        raise Refused(Reason.NOT_TEXT)
    return _tolerant(data, "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le")


def _tolerant(data: bytes, charset: str) -> str:
    """Decode what a few damaged characters must not lose. Raises LookupError for an unknown charset."""
    if codecs.lookup(charset)._is_text_encoding is False:
        raise LookupError(charset)
    text = data.decode(charset, errors="replace")
    if text.count("\ufffd") > max(1, len(text) * _MAX_DAMAGE):
        raise Refused(Reason.UNKNOWN_CHARSET)
    return clean(text)


def _legacy(data: bytes) -> str:
    """A one-byte or East Asian charset, by the statistics of its letters."""
    sample = data[:_SAMPLE_BYTES]
    if sum(1 for byte in sample if byte < 32 and byte not in b"\t\n\r\x0c\x1b") > len(sample) * 0.01:
        raise Refused(Reason.NOT_TEXT)
    if (western := _western(data)) is not None:
        return clean(western)
    for match in islice(from_bytes(_around_letters(data)), 3):
        try:
            return clean(data.decode(match.encoding))
        except UnicodeDecodeError:
            continue  # the sample fitted, the rest does not
    raise Refused(Reason.UNKNOWN_CHARSET)


def _western(data: bytes) -> str | None:
    """The text in Windows-1252 where that is plausible: by far the most common, and too like its neighbours to tell.

    Polish or Czech would put signs such as \u00b3 or \u00b9 among the letters, which no Western text does.
    """
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return None
    beyond = [char for char in text if char > "\x7f"]
    strange = sum(1 for char in beyond if not _WESTERN.match(char))
    letters = sum(1 for char in text if char.isalpha())
    plausible = strange * 50 <= len(beyond) and len(beyond) <= letters * _WESTERN_SHARE
    return text if plausible else None


def _around_letters(data: bytes) -> bytes:
    """A sample that holds the first bytes beyond ASCII, from the beginning of a line on."""
    first = next((at for at, byte in enumerate(data) if byte > 127), 0)
    start = data.rfind(b"\n", 0, max(0, first - 200)) + 1
    return data[start : start + _SAMPLE_BYTES]
