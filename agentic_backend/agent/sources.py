"""Hits as an answer's sources: numbered for the prompt, cited as links, and shortened for storage.

A source has one number everywhere: `[2]` in the text is the link part with `source_id` "2" and `metadata.sources[1]`.
Pure functions.
"""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from agentic_backend.events import Part
from agentic_backend.knowledge import Hit
from backend_kit.wire import dumps

KEPT_BYTES: Final = 12 * 1024
"""Bytes that the sources of one answer may take in its metadata. The compatible `final` has 32 KiB a frame
(docs/contract.md#frames): this leaves 20 KiB for question, answer, ledger and session."""
_KEPT_CHARS: Final = ((600, 300), (300, 200), (120, 100), (0, 60))
"""Characters of a content and of any other text, tried in this order until everything fits."""
# How a hit was found matters to knowledge flow and its reranker, not to a reader of the answer.
_NOT_KEPT: Final = frozenset(
    {
        "embedding_model", "vector_index", "token_count", "retrieved_at", "retrieval_session_id", "pull_location",
        "file_path", "tag_ids", "tag_full_paths",
    }
)  # fmt: skip

_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_CITED: Final = re.compile(r"\[(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\](?!\()")
# Starts at the first blank: otherwise a long run of blanks would be read again at each of them.
_CITATION: Final = re.compile(r"(?<![ \t])[ \t]*\[\d{1,3}(?:\s*[,;]\s*\d{1,3})*\](?!\()")
_NUMBER_MARK: Final = re.compile(r"^([ \t]*(?:[-*][ \t]*)?)\[(?=\d{1,3}\])", re.MULTILINE)
_DELIMITER: Final = re.compile(r"<(?=/?source\b)", re.IGNORECASE)
_EMPTY_LINES: Final = re.compile(r"\n\s*\n\s*\n")


def numbered(hits: Sequence[Hit], max_chars: int) -> str:
    """The hits as text for a prompt, numbered from `[1]`, each cut at `max_chars` and enclosed in marks.

    A passage is data: it cannot end its mark, begin a source, or imitate another number. It starts on the line of its
    number and ends with two empty lines, which do not occur inside it.
    """
    return "\n\n".join(_source(number, hit, max_chars) for number, hit in enumerate(hits, 1))


def _source(number: int, hit: Hit, max_chars: int) -> str:
    text = _EMPTY_LINES.sub("\n\n", hit["content"][:max_chars].strip())
    text = _NUMBER_MARK.sub(r"\1\\[", _inert(text))
    where = [f'title="{_attribute(hit["title"])}"']
    if section := hit.get("section"):
        where.append(f'section="{_attribute(section)}"')
    if page := hit.get("page"):
        where.append(f'page="{page}"')
    return f'<source number="{number}" {" ".join(where)}>\n[{number}] {text}\n\n\n</source>'


def _attribute(text: str) -> str:
    return _inert(" ".join(text.split())[:200].replace('"', "'"))


def _inert(text: str) -> str:
    return _DELIMITER.sub("&lt;", text)


def cited(text: str, count: int) -> list[int]:
    """The numbers from 1 to `count` that an answer cites, in order of first mention. Code blocks are ignored."""
    return list(marks(text, count))


def marks(text: str, count: int) -> dict[int, tuple[int, int]]:
    """The numbers that `cited` finds, each with where its first mark begins and ends in the text."""
    found: dict[int, tuple[int, int]] = {}
    for match in _CITED.finditer(_CODE.sub(_blank, text)):
        for number in re.findall(r"\d+", match[1]):
            if 1 <= int(number) <= count:
                found.setdefault(int(number), match.span())
    return found


def _blank(code: re.Match[str]) -> str:
    return " " * len(code[0])


def citations(text: str, hits: Sequence[Hit]) -> list[Part]:
    """The link parts of an answer: one for each source that it cites."""
    return [_link(number, hits[number - 1]) for number in cited(text, len(hits))]


def _link(number: int, hit: Hit) -> Part:
    part: dict[str, Any] = {
        "type": "link",
        "kind": "citation",
        "href": _address(hit),
        "title": hit["title"] or hit.get("file_name") or hit["uid"],
        "source_id": str(number),
        "document_uid": hit["uid"],
    }
    for key, name in (("mime_type", "mime"), ("file_name", "file_name")):
        if hit.get(key):
            part[name] = hit[key]
    return part


def _address(hit: Hit) -> str:
    """Where the passage can be read: a path of this service or a web address, never a script."""
    url: str = hit.get("citation_url") or ""
    if (url.startswith("/") and not url.startswith(("//", "/\\"))) or url.startswith(("https://", "http://")):
        return url
    return f"/documents/{quote(hit['uid'], safe='')}"


def kept(hits: Sequence[Hit]) -> list[Hit]:
    """The hits as they are shown and stored: without the fields that only a search needs, and with contents cut so
    that all hits fit into `KEPT_BYTES`. An ellipsis marks each cut."""
    shortest: list[Hit] = []
    for content_chars, text_chars in _KEPT_CHARS:
        shortest = [_shortened(hit, content_chars, text_chars) for hit in hits]
        if len(dumps(shortest)) <= KEPT_BYTES:
            break
    return shortest


def _shortened(hit: Hit, content_chars: int, text_chars: int) -> Hit:
    short: Hit = {}
    for key, value in hit.items():
        if key in _NOT_KEPT:
            continue
        if isinstance(value, str):
            limit = content_chars if key == "content" else text_chars
            # A cut address or uid would lead elsewhere.
            whole = len(value) <= limit or key == "uid" or key.endswith("_url")
            short[key] = value if whole else value[:limit] + "…"
        else:
            short[key] = value
    return short


def without_citations(text: str) -> str:
    """An earlier answer without its source numbers, which the sources of this turn use again."""
    return _CITATION.sub("", text)
