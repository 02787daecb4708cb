"""Where a relative link in a document leads: to another document of a library that it stands in."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from backend_kit.wire import InvalidJson, loads

MAX_CANDIDATES: Final = 200
_MAX_NAME_CHARS: Final = 200
"""What a listing takes as a name."""
_MAX_TEXT_CHARS: Final = 2_000


class BadListing(ValueError):
    """An answer that is no document, or no list of them. The text says what is wrong, never what was in it."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A document as a listing has it. `path` is the name it was uploaded under, with its folders."""

    uid: str
    title: str
    name: str
    path: str
    mime: str
    tags: frozenset[str]

    @classmethod
    def of(cls, value: Any) -> "Listed":
        """Raises `BadListing`."""
        if not isinstance(value, dict):
            raise BadListing("a document is not an object")
        texts = [value.get(key) for key in ("document_uid", "title", "file_name", "file_path", "mime_type")]
        tags = value.get("tag_ids")
        if not all(isinstance(text, str) for text in texts) or not texts[0] or not isinstance(tags, list):
            raise BadListing("a document lacks a key")
        uid, title, name, path, mime = (str(text)[:_MAX_TEXT_CHARS] for text in texts)
        return cls(uid, title, name, path, mime, frozenset(tag for tag in tags if isinstance(tag, str)))

    def shown(self) -> dict[str, str]:
        """What clients see of the document that a link leads to."""
        return {"document_uid": self.uid, "title": self.title, "file_name": self.name, "mime_type": self.mime}


def parse_document(data: bytes) -> Listed:
    """The one document of an answer. Raises `BadListing`."""
    return Listed.of(_json(data))


def parse_listing(data: bytes) -> list[Listed]:
    """The documents of an answer, at most `MAX_CANDIDATES`. Raises `BadListing`."""
    value = _json(data)
    documents = value.get("documents") if isinstance(value, dict) else None
    if not isinstance(documents, list):
        raise BadListing("no list of documents")
    return [Listed.of(one) for one in documents[:MAX_CANDIDATES]]


def listing_for(document: Listed, link: str) -> dict[str, Any] | None:
    """The listing that holds what a link in a document may lead to; None for a link that names nothing."""
    name = posixpath.basename(_target(document, link))
    if not name:
        return None
    filters: dict[str, Any] = {"name": _stem(name)[:_MAX_NAME_CHARS]}
    if document.tags:
        filters["tag_ids"] = sorted(document.tags)
    return {"filters": filters, "limit": MAX_CANDIDATES, "sort_by": "file_name"}


def linked(document: Listed, link: str, listed: Sequence[Listed]) -> Listed | None:
    """The document that a link leads to: the one at that path or else, if it is the only one, of that name or title.

    None where there is none, or more than one: to open some other document would be worse than to open none.
    """
    target = _target(document, link)
    name = posixpath.basename(target).casefold()
    # What is in no library is beside nothing but what is in none either.
    beside = [
        one for one in listed if one.uid != document.uid and bool(one.tags & document.tags) is bool(document.tags)
    ]
    named = {one.uid: one for one in beside if one.path == target}
    named = named or {one.uid: one for one in beside if one.name.casefold() == name}
    if not named and _stem(name) == name:
        named = {one.uid: one for one in beside if name in {_stem(one.name.casefold()), one.title.casefold()}}
    return next(iter(named.values())) if len(named) == 1 else None


def _target(document: Listed, link: str) -> str:
    path = unquote(link).replace("\0", "")
    folder = "" if path.startswith("/") else posixpath.dirname(document.path)
    # Above the first folder there is nothing.
    parts = posixpath.normpath(posixpath.join("/", folder, path.lstrip("/"))).strip("/")
    return "" if path.endswith("/") else parts


def _stem(name: str) -> str:
    return posixpath.splitext(name)[0]


def _json(data: bytes) -> Any:
    try:
        return loads(data)
    except InvalidJson:
        raise BadListing("not JSON") from None
