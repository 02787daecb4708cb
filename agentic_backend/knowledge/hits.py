"""Search hits as they come over the wire: checked, clipped, and nothing in them that history could not store."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from backend_kit.wire import InvalidJson, loads

SearchPolicy = Literal["hybrid", "semantic", "strict"]

MAX_QUESTION_CHARS: Final = 4_000
"""What is searched for: an embedder reads the first few hundred words, and a longer list of words finds everything."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """One search. `library_ids` and `document_uids` narrow the corpus, () does not; what the caller may not read is
    never found, whatever they name. `session_id` gives the attachments of that session their place. With `top_r` the
    hits are reranked, and that many are kept."""

    question: str
    top_k: int
    library_ids: tuple[str, ...] = ()
    document_uids: tuple[str, ...] = ()
    policy: SearchPolicy | None = None
    session_id: str | None = None
    include_session_scope: bool = True
    include_corpus_scope: bool = True
    top_r: int | None = None

    @property
    def limit(self) -> int:
        """Hits that may come."""
        return self.top_k if self.top_r is None else min(self.top_k, self.top_r)

    def body(self) -> dict[str, Any]:
        """The JSON body of `/vector/search`; what says nothing is left out."""
        body: dict[str, Any] = {
            "question": self.question[:MAX_QUESTION_CHARS],
            "top_k": self.top_k,
            "include_session_scope": self.include_session_scope,
            "include_corpus_scope": self.include_corpus_scope,
        }
        if self.library_ids:
            body["document_library_tags_ids"] = self.library_ids
        if self.document_uids:
            body["document_uids"] = self.document_uids
        if self.policy is not None:
            body["search_policy"] = self.policy
        if self.session_id is not None and self.include_session_scope:
            body["session_id"] = self.session_id
        if self.top_r is not None:
            body["rerank"] = {"top_r": self.top_r}
        return body


Hit = dict[str, Any]
"""A VectorSearchHit (docs/search.md#search): content, uid, title and score, and of its other keys those that say
something."""

MAX_CONTENT_CHARS: Final = 8_000
_MAX_TEXT_CHARS: Final = 2_000
_MAX_ITEMS: Final = 50


class BadHits(ValueError):
    """An answer that is no list of hits. The text says what is wrong, never what was in it."""


def parse_hits(data: bytes, limit: int) -> list[Hit]:
    """The first `limit` hits of an answer, contents and texts clipped. Raises `BadHits`.

    A hit without content, uid, title or score, or with one of another type, makes the whole answer bad; any other
    key that is unknown or of another type is dropped.
    """
    try:
        value = loads(data)
    except InvalidJson:
        raise BadHits("not JSON") from None
    if not isinstance(value, list):
        raise BadHits("not a list")
    # Postgres refuses NUL in jsonb, and the hits of an answer are kept with it.
    clean = _without_nul if b"\\u0000" in data else _as_it_is
    return [_parse_hit(item, clean) for item in value[:limit]]


def _parse_hit(value: Any, clean: Callable[[str], str]) -> Hit:
    if not isinstance(value, dict):
        raise BadHits("a hit is not an object")
    hit: Hit = {}
    for key, limit in (("content", MAX_CONTENT_CHARS), ("uid", _MAX_TEXT_CHARS), ("title", _MAX_TEXT_CHARS)):
        text = value.get(key)
        if not isinstance(text, str):
            raise BadHits(f"a hit has no {key}")
        hit[key] = clean(text[:limit])
    score = _number(value.get("score"))
    if score is None or not hit["uid"]:
        raise BadHits("a hit has no score or no uid")
    hit["score"] = score
    for key, read in _OPTIONAL.items():
        found = read(value.get(key))
        if found is not None:
            hit[key] = clean(found) if isinstance(found, str) else found
    for key in _LISTS:
        texts = value.get(key)
        if isinstance(texts, list) and texts:
            hit[key] = [clean(text[:_MAX_TEXT_CHARS]) for text in texts[:_MAX_ITEMS] if isinstance(text, str)]
    return hit


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value[:_MAX_TEXT_CHARS] if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _as_it_is(text: str) -> str:
    return text


def _without_nul(text: str) -> str:
    return text.replace("\x00", "\ufffd")


_OPTIONAL: Final[dict[str, Callable[[Any], Any]]] = {
    "rank": _whole,
    "retrieval_score": _number,
    "retrieval_rank": _whole,
    "page": _whole,
    "token_count": _whole,
    "confidential": _flag,
    **dict.fromkeys(
        (
            "section", "viewer_fragment", "author", "created", "modified", "file_name", "file_path", "repository",
            "pull_location", "language", "mime_type", "type", "preview_url", "preview_at_url", "repo_url",
            "citation_url", "license", "embedding_model", "vector_index", "retrieved_at", "retrieval_session_id",
        ),
        _text,
    ),
}  # fmt: skip
_LISTS: Final = ("tag_ids", "tag_names", "tag_full_paths")
