"""File names as labels: what people see, what tells two files of a library apart, and never a path on our disk."""

import hashlib
import re
from dataclasses import dataclass

from backend_kit.wire import normalized

MAX_LABEL_CHARS = 240
MAX_PART_CHARS = 120
# Control characters, lone surrogates, and the marks that make a name read in another direction than it is spelled.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_DRIVE = re.compile(r"^[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Format:
    """A format that is read: the parser's name and the media type under which the file is given back."""

    parser: str
    mime: str


_OFFICE = "application/vnd.openxmlformats-officedocument"
_FORMATS = {
    **dict.fromkeys(("md", "markdown", "mkd"), Format("markdown", "text/markdown")),
    **dict.fromkeys(("txt", "text", "rst", "log", ""), Format("text", "text/plain")),
    **dict.fromkeys(("html", "htm", "xhtml"), Format("html", "text/html")),
    "pdf": Format("pdf", "application/pdf"),
    "csv": Format("csv", "text/csv"),
    "tsv": Format("csv", "text/tab-separated-values"),
    **dict.fromkeys(("jsonl", "ndjson"), Format("jsonl", "application/x-ndjson")),
    "docx": Format("docx", f"{_OFFICE}.wordprocessingml.document"),
    "pptx": Format("pptx", f"{_OFFICE}.presentationml.presentation"),
    "xlsx": Format("xlsx", f"{_OFFICE}.spreadsheetml.sheet"),
}
SUFFIXES = frozenset(suffix for suffix in _FORMATS if suffix)
"""Endings of the files that are read, without the dot."""


def label(raw: str) -> str:
    """A clean relative label of the name that a client sent, "" where nothing is left of it.

    `../../x` is `x`, `C:\\texts\\a.md` is `texts/a.md`. What is cut for its length keeps its ending and gets a mark of
    its own, so that two long names stay two names.
    """
    parts = []
    for part in _DRIVE.sub("", normalized("NFC", _UNSEEN.sub("", raw))).replace("\\", "/").split("/"):
        cleaned = " ".join(part.split())
        if cleaned.strip(". "):
            parts.append(_shortened(cleaned, MAX_PART_CHARS))
    whole = "/".join(parts)
    return whole if len(whole) <= MAX_LABEL_CHARS else f"~{_mark(whole)}/{parts[-1]}"


def base_name(label_: str) -> str:
    """The last part of a label."""
    return label_.rsplit("/", 1)[-1]


def stem(name: str) -> str:
    """The last part without its ending; the title of a document that names none."""
    base = base_name(name)
    return base.rsplit(".", 1)[0] or base if "." in base else base


def suffix(name: str) -> str:
    """The ending in small letters without its dot, "" without one."""
    base = base_name(name)
    return base.rsplit(".", 1)[1].lower() if "." in base.lstrip(".") else ""


def format_of(name: str) -> Format | None:
    """How a file of this name is read, None where it is not."""
    return _FORMATS.get(suffix(name))


def _shortened(part: str, limit: int) -> str:
    if len(part) <= limit:
        return part
    ending = f".{suffix(part)}" if 0 < len(suffix(part)) <= 10 else ""
    mark = f"~{_mark(part)}{ending}"
    return part[: limit - len(mark)].rstrip() + mark


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
