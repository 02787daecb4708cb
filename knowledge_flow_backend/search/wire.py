"""The shapes of docs/search.md: what a search and a rerank are asked, and what a hit looks like."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool

from backend_kit.wire import storable
from knowledge_flow_backend.index import ChunkHit, Policy

MAX_IDS = 1000
MAX_DOCUMENTS = 1000
"""Hits that one rerank takes; a search returns 100 at most."""

CHUNK_MARK = "#chunk="
_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]*")


Line = Annotated[str, AfterValidator(storable)]
Id = Annotated[str, Field(max_length=256), AfterValidator(storable)]


TopR = Annotated[int, Field(ge=1, le=MAX_DOCUMENTS, strict=True)]


class RerankOfSearch(BaseModel):
    """What a search does with its hits before it answers: reranks them, and keeps the `top_r` best."""

    model_config = ConfigDict(hide_input_in_errors=True)

    top_r: TopR = 6


class SearchRequest(BaseModel):
    """`POST /vector/search`. Unknown keys are ignored. Ids that are not the caller's to read find nothing."""

    model_config = ConfigDict(allow_inf_nan=False, hide_input_in_errors=True)

    question: Line
    top_k: Annotated[int, Field(ge=1, le=100, strict=True)] = 10
    document_library_tags_ids: Annotated[list[Id], Field(max_length=MAX_IDS)] | None = None
    document_uids: Annotated[list[Id], Field(max_length=MAX_IDS)] | None = None
    search_policy: Policy | None = None
    session_id: Id | None = None
    include_session_scope: StrictBool = True
    include_corpus_scope: StrictBool = True
    rerank: RerankOfSearch | None = None


class VectorSearchHit(BaseModel):
    """A hit. A rerank takes any hit that has the four required fields, and gives back whatever else it carried."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    content: Line
    uid: str
    title: str
    score: float
    rank: int | None = None
    page: int | None = None
    section: str | None = None
    viewer_fragment: str | None = None
    author: str | None = None
    created: str | None = None
    modified: str | None = None
    file_name: str | None = None
    file_path: str | None = None
    repository: str | None = None
    pull_location: str | None = None
    language: str | None = None
    mime_type: str | None = None
    type: str | None = None
    tag_ids: list[str] = []
    tag_names: list[str] = []
    tag_full_paths: list[str] = []
    preview_url: str | None = None
    preview_at_url: str | None = None
    repo_url: str | None = None
    citation_url: Line | None = None
    license: str | None = None
    confidential: bool | None = None
    embedding_model: str | None = None
    vector_index: str | None = None
    token_count: int | None = None
    retrieved_at: str | None = None
    retrieval_session_id: str | None = None
    retrieval_score: float | None = None
    retrieval_rank: int | None = None

    @property
    def chunk_uid(self) -> str | None:
        """The chunk that its citation names, None where it names none."""
        _, mark, chunk = (self.citation_url or "").rpartition(CHUNK_MARK)
        return chunk if mark and chunk else None


class RerankRequest(BaseModel):
    """`POST /vector/rerank`."""

    model_config = ConfigDict(allow_inf_nan=False, hide_input_in_errors=True)

    question: Line
    documents: Annotated[list[VectorSearchHit], Field(max_length=MAX_DOCUMENTS)]
    top_r: TopR = 6


class Provenance:
    """What every hit of one search says of the search itself."""

    def __init__(self, *, embedding_model: str, vector_index: str, session_id: str | None) -> None:
        self._fields = {
            "embedding_model": embedding_model,
            "vector_index": vector_index,
            "retrieved_at": _time(datetime.now(UTC)),
            "retrieval_session_id": session_id,
        }

    def hit(self, found: ChunkHit, rank: int) -> dict[str, Any]:
        """A hit as it goes over the wire; ranks count from 1."""
        document = f"/documents/{_quoted(found.document_uid)}"
        citation = f"{document}{CHUNK_MARK}{_quoted(found.chunk_uid)}"
        return {
            "content": found.content,
            "uid": found.document_uid,
            "title": found.title,
            "score": found.score,
            "rank": rank,
            "page": found.page,
            "section": found.section or None,
            "viewer_fragment": f"chunk={found.chunk_uid}",
            "author": found.author,
            "created": _time(found.created),
            "modified": _time(found.modified),
            "file_name": found.file_name,
            "file_path": found.file_path,
            "repository": found.repository,
            "pull_location": found.pull_location,
            "language": found.language,
            "mime_type": found.mime_type,
            "type": found.type,
            "tag_ids": found.tag_ids,
            "tag_names": found.tag_names,
            "tag_full_paths": found.tag_full_paths,
            "preview_url": document,
            "preview_at_url": citation,
            "repo_url": None,
            "citation_url": citation,
            "license": found.license,
            "confidential": found.confidential,
            "token_count": found.token_count,
            **self._fields,
        }


def move_hit(hit: dict[str, Any], rank: int, score: float) -> None:
    """Give a hit its new place; where it stood before is kept, also through a second rerank."""
    if hit.get("retrieval_score") is None:
        hit["retrieval_score"] = hit["score"]
        hit["retrieval_rank"] = hit.get("rank")
    hit["score"] = score
    hit["rank"] = rank


def _quoted(uid: str) -> str:
    # Nearly every uid is nothing but such characters, and quoting each of them shows in a profile.
    return uid if _UNRESERVED.fullmatch(uid) else quote(uid, safe="")


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
